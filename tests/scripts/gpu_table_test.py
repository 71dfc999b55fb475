"""Tests of scripts/gpu_table.py: bars are judged, and what was not measured is left out."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_table.py"


def figure(part, case, name, value):
    return json.dumps({"part": part, "case": case, "figure": name, "value": value})


class GpuTable(unittest.TestCase):
    def table(self, lines):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.json"
            path.write_text("noise of a program\n" + "\n".join(lines) + "\n", encoding="utf-8")
            run = subprocess.run([sys.executable, str(SCRIPT), str(path)], capture_output=True, text=True, check=True)
        return {row[0]: row for row in ([cell.strip() for cell in line.strip("|").split("|")]
                                        for line in run.stdout.splitlines())}

    def test_pairs_against_their_bars(self):
        rows = self.table([figure("pairs", "512", "cistern_ns", 10), figure("pairs", "512", "torch_ns", 500),
                           figure("pairs", "512", "async_ns", 300)])
        self.assertEqual(rows["against PyTorch raw_alloc/raw_delete from C++"][3], "yes")
        self.assertEqual(rows["against cuMemAllocAsync"][3], "NO")
        self.assertEqual(rows["against cuMemAllocAsync"][1], "300 ns, 30x")

    def test_memory_and_driver_time(self):
        figures = {"ratio": 1.09, "driver_ms": 30, "duration_ms": 2000, "host_waits": 1, "failed": 0, "handle_ops": 5,
                   "last_calls": 3, "last_handle_ops": 0, "second_ns": 80}
        rows = self.table([figure("behind", "a_decode", name, value) for name, value in figures.items()])
        self.assertEqual(rows["a_decode: peak reserved / peak live"][3], "NO")
        self.assertEqual(rows["driver time of the first pass"][2:], ["<= 50 ms", "yes"])
        self.assertEqual(rows["host waits, failed"][3], "NO")
        self.assertEqual(rows["driver calls of the tenth pass"][3], "NO")

    def test_events_without_a_rival_are_not_judged(self):
        lines = [figure("events", "t", name, 100) for name in ("first_ns", "second_ns", "fifth_ns", "second_calls")]
        self.assertEqual(self.table(lines)["t: event of the second pass"][3], "")
        lines += [figure("events", "t", "torch_second_ns", 399)]
        lines += [figure("events", "t", f"{name}_times", times) for name, times in
                  (("first", 0.5), ("second", 3.9), ("second", 3.9), ("second", 9), ("fifth", 5))]
        row = self.table(lines)["t: event of the second pass"]
        self.assertEqual(row[3], "NO")
        self.assertIn("PyTorch 399 ns, 3.9x (first 0.5x, fifth 5.0x)", row[1])

    def test_a_failed_step_shows(self):
        self.assertEqual(self.table([figure("step", "memcheck", "exit", 124)])["memcheck"][1:], ["exit 124", "exit 0", "NO"])


if __name__ == "__main__":
    unittest.main()
