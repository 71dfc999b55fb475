"""Draws docs/images/memory.svg: peak reserved / peak live bytes of every trace, by allocator, on a logarithmic axis.

Cistern, the whole-buffer cache and the pool are replayed now, on the model device; the figures of PyTorch and
cudaMallocAsync are those of data/traces/native.json. Usage: figure_memory.py PROGRAM (the built `cistern`).
"""

import json
import math
import pathlib
import subprocess
import sys

from tree import ROOT

OURS = {"cistern": "Cistern", "buffer-cache": "whole-buffer cache", "pool": "power-of-two pool"}
NATIVE = {"native": "PyTorch", "expandable": "PyTorch, expandable segments", "async": "cudaMallocAsync"}
COLOURS = {"cistern": "#2f7ed8", "buffer-cache": "#d1495b", "pool": "#e0a030", "native": "#7a5195", "expandable": "#3aa675",
           "async": "#8a96a3"}
LEFT, RIGHT, TOP, ROW, WIDTH = 150, 30, 76, 30, 920


def replayed(program, allocator, traces):
    """Trace name -> worst ratio of its passes."""
    command = [program, "replay", "--device", "model", "--allocator", allocator, "--json", *map(str, traces)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    worst = {}
    for record in map(json.loads, lines):
        name = record["trace"].split("/")[-1].removesuffix(".gz").removesuffix(".csv")
        worst[name] = max(worst.get(name, 0), record["ratio"])
    return worst


def position(ratio, largest):
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(ratio) / math.log(largest)


def draw(rows, series):
    """rows: trace -> {series: ratio}. Dots of one row lie on one line; Cistern's is drawn last, on top."""
    largest = 1.15 * max(max(r.values()) for r in rows.values())
    height = TOP + ROW * len(rows) + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
           'font-family="system-ui, sans-serif" font-size="13">',
           "<title>Peak reserved bytes by peak live bytes, by trace and allocator</title>",
           "<style>text{fill:#1f2933}.line{stroke:#c9d3de}"
           "@media (prefers-color-scheme:dark){text{fill:#e4e9ee}.line{stroke:#46525e}}</style>",
           '<text x="20" y="22" font-weight="600">Peak reserved / peak live bytes (1 is perfect; logarithmic)</text>']
    x = 20.0
    for key, label in series.items():
        out.append(f'<circle cx="{x + 6:.0f}" cy="44" r="6" fill="{COLOURS[key]}"/>'
                   f'<text x="{x + 17:.0f}" y="48">{label}</text>')
        x += 40 + 6.7 * len(label)
    for tick in (1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100):
        if tick <= largest:
            at = position(tick, largest)
            out.append(f'<path class="line" d="M{at:.1f} {TOP - 10}V{height - 30}"/>'
                       f'<text x="{at:.1f}" y="{height - 12}" text-anchor="middle" font-size="11">{tick:g}</text>')
    for number, (name, ratios) in enumerate(sorted(rows.items())):
        y = TOP + ROW * number + 10
        out.append(f'<text x="20" y="{y + 4}">{name}</text><path class="line" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        for key in reversed(series):
            if key in ratios:
                at = position(max(1.0, ratios[key]), largest)
                out.append(f'<circle cx="{at:.1f}" cy="{y}" r="6" fill="{COLOURS[key]}">'
                           f"<title>{series[key]}: {ratios[key]:.3f}</title></circle>")
    return "\n".join([*out, "</svg>", ""])


def main():
    program = sys.argv[1]
    traces = sorted((ROOT / "data" / "traces").glob("*.csv.gz"))
    native = json.loads((ROOT / "data" / "traces" / "native.json").read_text())
    rows = {}
    for key in OURS:
        for name, ratio in replayed(program, key, traces).items():
            rows.setdefault(name, {})[key] = ratio
    for name, figures in native.items():
        if name in rows:
            rows[name].update({key: figures[key]["ratio"] for key in NATIVE if key in figures})
    target = pathlib.Path(ROOT / "docs" / "images" / "memory.svg")
    target.write_text(draw(rows, OURS | NATIVE))
    print(f"wrote {target.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
