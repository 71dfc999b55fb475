"""The workloads under PyTorch's allocator, its expandable segments and Cistern, one process each, which take turns step by
step on the same cores: what the machine does meanwhile hits all alike. Prints one table; --json FILE keeps all numbers.
Exit status 1 when results differ.

    PYTHONPATH=python CISTERN_TORCH_LIBRARY=build/release/torch/libcistern_torch.so python3 bench/torch/compare.py
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

ALLOCATORS = ("native", "expandable", "cistern")
HERE = os.path.dirname(os.path.abspath(__file__))


def same(a, b):
    """0 for the same to the last bit, else the largest relative difference."""
    if a == b:
        return 0.0
    if isinstance(a, str):
        return math.inf
    return max(abs(x - y) / max(abs(x), 1e-9) for x, y in zip(a, b))


def median_interval(values):
    """The median and its 95 % interval by order statistics (the binomial distribution; no model of the values)."""
    ordered, n = sorted(values), len(values)
    below, cumulative = 0, 0.0
    while below < n // 2:
        cumulative += math.comb(n, below) / 2**n
        if cumulative > 0.025:
            break
        below += 1
    first = max(below - 1, 0)
    return statistics.median(ordered), ordered[first], ordered[n - 1 - first]


class Program:
    """One process; at any time it either waits for its turn or is gone."""

    def __init__(self, allocator, names):
        self.allocator, self.lines = allocator, []
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([sys.executable, "-W", "ignore", os.path.join(HERE, "one.py"), allocator, "--turns",
                                         *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True)

    def until_ready(self):
        """Reads up to the next turn. False when the process has ended."""
        for text in self.process.stdout:
            if text.startswith("{"):
                self.lines.append(json.loads(text))
            elif text.strip() == "ready":
                return True
        return False

    def step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.until_ready()

    def end(self, number):
        self.process.stdin.close()
        if self.process.wait() != 0:
            self.errors.seek(0)
            print(f"{self.allocator}, round {number}: exit status {self.process.returncode}\n{self.errors.read()[-3000:]}")
        self.errors.close()


def take_turns(names, number):
    programs = [Program(allocator, names) for allocator in ALLOCATORS]
    running = [program for program in programs if program.until_ready()]
    turn = number
    while running:
        first = turn % len(running)
        running = [program for program in running[first:] + running[:first] if program.step()]
        running.sort(key=programs.index)
        turn += 1
    for program in programs:
        program.end(number)
    return [dict(line, round=number) for program in programs for line in program.lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further round after this time")
    parser.add_argument("--cores", type=int, default=2, help="cores that the processes share, 0 for all (default %(default)s)")
    parser.add_argument("--json")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.cores > 0:
        # Only one of them works at a time; on cores of its own each would have its own speed on a shared host.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:arguments.cores])
    begin, lines, spent = time.time(), [], 0.0
    for number in range(arguments.rounds):
        if number and time.time() - begin + spent / number > arguments.seconds:
            break
        lines += take_turns(arguments.names, number)
        spent = time.time() - begin
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(lines, file)
    report(lines)


def counted(line):
    """Seconds of the steps after the first quarter."""
    return line["seconds"][len(line["seconds"]) // 4:]


def step_ratios(lines, base):
    """Times of the counted steps over those of the same steps, taken by turns, under `base`."""
    ratios = []
    for line in lines:
        other = next((x for x in base if x["round"] == line["round"]), None)
        if other is None:
            continue
        ratios += [a / b for a, b in zip(counted(line), counted(other))]
    return ratios


def report(lines):
    failed = False
    rounds = 1 + max((line["round"] for line in lines), default=-1)
    print(f"{rounds} rounds; reserved / requested at their peaks; step time against native's same step: median (95 % interval)")
    print("| workload | peak requested | native | expandable | cistern | step, native | expandable | cistern | results |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in dict.fromkeys(line["workload"] for line in lines):
        of = {a: [x for x in lines if x["workload"] == name and x["allocator"] == a] for a in ALLOCATORS}
        if not all(of.values()):
            print(f"| {name} | incomplete |")
            failed = True
            continue
        ratio = {a: max(x["peak_reserved"] / x["peak_requested"] for x in of[a]) for a in ALLOCATORS}
        first = of["native"][0]["results"]
        worst = max(same(first, x["results"]) for x in of["cistern"])
        itself = max(same(first, x["results"]) for a in ("native", "expandable") for x in of[a])
        failed = failed or worst > max(1e-3, itself)

        def step(allocator):
            median, low, high = median_interval(step_ratios(of[allocator], of["native"]))
            return f"{median:.3f} ({low:.3f} to {high:.3f})"

        native = statistics.median(t for x in of["native"] for t in counted(x))
        requested = of["cistern"][0]["peak_requested"] / 2**30
        print(f"| {name} | {requested:.2f} GiB | " + " | ".join(f"{ratio[a]:.3f}" for a in ALLOCATORS)
              + f" | {native * 1e3:.2f} ms | {step('expandable')} | {step('cistern')} | "
              + ("same bits" if worst == 0 else f"differ by {worst:.1e}; PyTorch from itself by {itself:.1e}") + " |")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
