#!/usr/bin/env python3
"""The table of a GPU round: figures beside their bars.

usage: gpu_table.py FIGURES... [--native native.json]

FIGURES are files with one JSON object a line ("part", "case", "figure", "value"), as the round's programs print them;
of a figure that was measured more than once the median counts.
The exit status is 0 also where a bar is missed: the table says so.
"""
import argparse
import json
import math
import statistics
import sys


def read(paths: list[str]) -> dict:
    figures: dict = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith("{"):
                    entry = json.loads(line)
                    case = figures.setdefault(entry["part"], {}).setdefault(entry["case"], {})
                    case.setdefault(entry["figure"], []).append(entry["value"])
    for part in figures.values():
        for case in part.values():
            for figure, values in case.items():
                case[figure] = statistics.median(values)
    return figures


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


class Table:
    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []

    def add(self, what: str, value: str, bar: str = "", met: bool | None = None) -> None:
        self.rows.append((what, value, bar, "" if met is None else "yes" if met else "NO"))

    def __str__(self) -> str:
        head = ("figure", "measured", "bar", "met")
        widths = [max(len(row[i]) for row in [head, *self.rows]) for i in range(4)]
        lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"
                 for row in [head, tuple("-" * width for width in widths), *self.rows]]
        return "\n".join(lines)


def pair_rows(table: Table, f: dict) -> None:
    for case, p in f.get("pairs", {}).items():
        own = p.get("cistern_ns")
        if own is None:
            continue
        table.add(f"pair of {case} B", f"{own:.1f} ns")
        for rival, name, bar in (("torch_ns", "PyTorch raw_alloc/raw_delete from C++", 20),
                                 ("torch_python_ns", "the same from Python", 20), ("async_ns", "cuMemAllocAsync", 40)):
            if rival in p:
                times = p.get(rival.replace("_ns", "_times"), p[rival] / own)
                table.add(f"  against {name}", f"{p[rival]:.0f} ns, {times:.0f}x", f">= {bar}x", times >= bar)
    threads = f.get("threads", {}).get("all", {}).get("threads", 0)
    for case, p in f.get("threads", {}).items():
        if "libc_all" in p:
            table.add(f"  C library on {threads:.0f} threads", f"{p['libc_all']:.0f} M/s, {p['libc_all'] / p['libc_1']:.1f}x one thread")
        if "registers_all" in p:
            table.add(f"  additions in registers on {threads:.0f} threads", f"{p['registers_all'] / p['registers_1']:.1f}x one thread")
        if "cistern_all" not in p:
            continue
        scaling = p["cistern_all"] / p["cistern_1"]
        table.add(f"pairs of {case} B on {threads:.0f} threads",
                  f"{p['cistern_all']:.0f} M/s, {scaling:.1f}x one thread", ">= 12x", scaling >= 12)
        if "cistern_beside" in p:
            table.add(f"  over one thread beside {threads - 1:.0f} that add in registers",
                      f"{p['cistern_all'] / p['cistern_beside']:.1f}x")
        if "torch_all" in p:
            table.add("  PyTorch", f"{p['torch_all']:.2f} M/s (one thread {p['torch_1']:.2f})")


def behind_rows(table: Table, f: dict, native: dict) -> None:
    ratios = []
    for case, b in f.get("behind", {}).items():
        ratios.append(b["ratio"])
        rivals = {key: value["ratio"] for key, value in native.get(case, {}).items() if isinstance(value, dict)}
        beside = ", ".join(f"{key} {value:.2f}" for key, value in rivals.items())
        table.add(f"{case}: peak reserved / peak live", f"{b['ratio']:.3f}" + (f" ({beside})" if beside else ""), "<= 1.08",
                  b["ratio"] <= 1.08)
        bar = max(0.025 * b["duration_ms"], 20)
        table.add("  driver time of the first pass", f"{b['driver_ms']:.1f} ms, {b['handle_ops']:.0f} operations",
                  f"<= {bar:.0f} ms", b["driver_ms"] <= bar)
        table.add("  host waits, failed", f"{b['host_waits']:.0f}, {b['failed']:.0f}", "0, 0",
                  b["host_waits"] == 0 and b["failed"] == 0)
        decode = "decode" in case
        table.add("  driver calls of the tenth pass", f"{b['last_calls']:.0f}", "0" if decode else "",
                  b["last_calls"] == 0 if decode else None)
        table.add("  time per event of the second pass, GPU behind", f"{b['second_ns']:.0f} ns")
    if ratios:
        table.add("geometric mean", f"{geomean(ratios):.3f}", "<= 1.04", geomean(ratios) <= 1.04)
    for case, b in f.get("limit", {}).items():
        table.add(f"{case} under 1.05 x its peak", f"{b['failed']:.0f} failed, {b['host_waits']:.0f} host waits", "0 failed",
                  b["failed"] == 0)


def event_rows(table: Table, f: dict) -> None:
    for case, e in f.get("events", {}).items():
        if "second_ns" not in e:
            continue
        text = f"{e['second_ns']:.0f} ns (first {e['first_ns']:.0f}, fifth {e['fifth_ns']:.0f}; {e['second_calls']:.0f} calls)"
        if "second_times" in e:
            # Turn by turn: the host's speed changes between turns.
            times = e["second_times"]
            table.add(f"{case}: event of the second pass",
                      f"{text}; PyTorch {e['torch_second_ns']:.0f} ns, {times:.1f}x (first {e['first_times']:.1f}x, fifth "
                      f"{e['fifth_times']:.1f}x)", ">= 4x", times >= 4)
        else:
            table.add(f"{case}: event of the second pass", text)


def other_rows(table: Table, f: dict) -> None:
    for case, v in f.get("verify", {}).items():
        if "mismatches" in v:
            table.add(f"{case}: words not as the kernels wrote them", f"{v['mismatches']:.0f}, faults {v['faults']:.0f}", "0, 0",
                      v["mismatches"] == 0 and v["faults"] == 0)
        else:
            table.add("bytes written and checked by kernels", f"{v['GiB']:.0f} GiB")
    for v in f.get("fill", {}).values():
        table.add("device filled, of its free memory", f"{v['first']:.4f}, again {v['again']:.4f} of that",
                  "works", v["again"] > 0.97)
        if "largest" in v:
            table.add("largest block after fragmentation, of the free memory",
                      f"{v['largest']:.3f} (live {v['kept_share']:.3f} of the device, {v['seconds']:.2f} s)", ">= 0.97",
                      v["largest"] >= 0.97)
    for case, v in f.get("stripes", {}).items():
        table.add(f"largest block on a device full of {case}, every second one freed", f"{v['largest']:.3f} of the free memory")
    for v in f.get("hand_over", {}).values():
        table.add(f"{v['count']:.0f} hand-overs between two streams",
                  f"{v['mismatches']:.0f} words wrong, {v['host_waits']:.0f} host waits, {v['us_each']:.1f} us each, "
                  f"{v['reserved_MiB']:.0f} MiB", "0, 0", v["mismatches"] == 0 and v["host_waits"] == 0)
    for case, v in f.get("step", {}).items():
        table.add(case, f"exit {v['exit']:.0f}", "exit 0", v["exit"] == 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="+")
    parser.add_argument("--native")
    options = parser.parse_args()
    figures = read(options.figures)
    native = json.load(open(options.native, encoding="utf-8")) if options.native else {}
    table = Table()
    pair_rows(table, figures)
    behind_rows(table, figures, native)
    event_rows(table, figures)
    other_rows(table, figures)
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
