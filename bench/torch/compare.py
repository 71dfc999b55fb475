"""The workloads under PyTorch's allocator, its expandable segments and Cistern: processes take turns, so that what the
machine does meanwhile hits all alike. Prints one table; --json FILE keeps all numbers. Exit status 1 when results differ.

    PYTHONPATH=python CISTERN_TORCH_LIBRARY=build/release/torch/libcistern_torch.so python3 bench/torch/compare.py
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time

ALLOCATORS = ("native", "expandable", "cistern")
HERE = os.path.dirname(os.path.abspath(__file__))


def median_step(line):
    return statistics.median(line["seconds"][len(line["seconds"]) // 4:])


def same(a, b):
    """0 for the same to the last bit, else the largest relative difference."""
    if a == b:
        return 0.0
    if isinstance(a, str):
        return math.inf
    return max(abs(x - y) / max(abs(x), 1e-9) for x, y in zip(a, b))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further round after this time")
    parser.add_argument("--json")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    begin, lines, spent = time.time(), [], 0.0
    for number in range(arguments.rounds):
        if number and time.time() - begin + spent / number > arguments.seconds:
            break
        order = ALLOCATORS if number % 2 == 0 else ALLOCATORS[::-1]
        for allocator in order:
            done = subprocess.run([sys.executable, "-W", "ignore", os.path.join(HERE, "one.py"), allocator,
                                   *arguments.names], capture_output=True, text=True)
            for text in done.stdout.splitlines():
                if text.startswith("{"):
                    lines.append(dict(json.loads(text), round=number))
            if done.returncode != 0:
                print(f"{allocator}, round {number}: exit status {done.returncode}\n{done.stderr[-3000:]}")
        spent = time.time() - begin
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(lines, file)
    report(lines)


def report(lines):
    failed = False
    rounds = 1 + max((line["round"] for line in lines), default=-1)
    print(f"{rounds} rounds; reserved / requested at their peaks; step time against native: median of the rounds' ratios "
          "(least to greatest)")
    print("| workload | peak requested | native | expandable | cistern | step, native | expandable | cistern | results |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in dict.fromkeys(line["workload"] for line in lines):
        of = {a: [x for x in lines if x["workload"] == name and x["allocator"] == a] for a in ALLOCATORS}
        if not all(of.values()):
            print(f"| {name} | incomplete |")
            failed = True
            continue
        ratio = {a: max(x["peak_reserved"] / x["peak_requested"] for x in of[a]) for a in ALLOCATORS}
        base = {x["round"]: median_step(x) for x in of["native"]}
        against = {a: sorted(median_step(x) / base[x["round"]] for x in of[a] if x["round"] in base) for a in ALLOCATORS}
        first = of["native"][0]["results"]
        worst = max(same(first, x["results"]) for x in of["cistern"])
        itself = max(same(first, x["results"]) for a in ("native", "expandable") for x in of[a])
        failed = failed or worst > max(1e-3, itself)

        def step(allocator):
            r = against[allocator]
            return f"{statistics.median(r):.3f} ({r[0]:.3f} to {r[-1]:.3f})"

        requested = of["cistern"][0]["peak_requested"] / 2**30
        print(f"| {name} | {requested:.2f} GiB | " + " | ".join(f"{ratio[a]:.3f}" for a in ALLOCATORS)
              + f" | {statistics.median(base.values()) * 1e3:.2f} ms | {step('expandable')} | {step('cistern')} | "
              + ("same bits" if worst == 0 else f"differ by {worst:.1e}; PyTorch from itself by {itself:.1e}") + " |")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
