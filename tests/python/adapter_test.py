"""libcistern_torch over the CUDA stand-in, by ctypes alone: allocation, figures, snapshots, failures. Needs no PyTorch.
Usage: adapter_test.py LIBRARY STANDIN.
"""

import os
import pickle
import pickletools
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))
sys.dont_write_bytecode = True

from cistern import _library, figures, snapshot  # noqa: E402

MiB = 1 << 20


def alloc(size, stream=None):
    return _library.load().cistern_torch_try_alloc(size, 0, stream)


def free(ptr, size, stream=None):
    _library.load().cistern_torch_free(ptr, size, 0, stream)


class AdapterTest(unittest.TestCase):
    def tearDown(self):
        snapshot.record(0)

    def test_figures_follow(self):
        start = figures.nested(0)
        small, large = alloc(1000), alloc(3 * MiB + 1)
        now = figures.nested(0)

        def grown(name, pool):
            return now[name][pool]["current"] - start[name][pool]["current"]

        self.assertEqual(grown("requested_bytes", "all"), 3 * MiB + 1001)
        self.assertEqual(grown("requested_bytes", "small_pool"), 1000)
        self.assertEqual(grown("allocated_bytes", "small_pool"), 1024)
        self.assertEqual(grown("allocated_bytes", "large_pool"), 3 * MiB + 512)
        self.assertEqual(grown("allocation", "all"), 2)
        self.assertGreaterEqual(now["reserved_bytes"]["all"]["current"], 3 * MiB)
        self.assertEqual(_library.stats(0).active, now["allocated_bytes"]["all"]["current"])
        free(small, 1000)
        free(large, 3 * MiB + 1)
        end = figures.nested(0)
        for name in ("requested_bytes", "allocated_bytes", "allocation", "active"):
            self.assertEqual(end[name]["all"]["current"], start[name]["all"]["current"], name)
            self.assertGreaterEqual(end[name]["all"]["peak"], now[name]["all"]["current"], name)
            self.assertEqual(end[name]["all"]["freed"] - start[name]["all"]["freed"],
                             now[name]["all"]["current"] - start[name]["all"]["current"], name)
        figures.reset_peaks(0)
        self.assertEqual(figures.nested(0)["requested_bytes"]["all"]["peak"],
                         end["requested_bytes"]["all"]["current"])
        figures.reset_accumulated(0)
        self.assertEqual(figures.nested(0)["allocation"]["all"]["freed"], 0)
        segments = figures.nested(0)["segment"]["all"]
        self.assertEqual((segments["allocated"], segments["freed"]), (0, 0))
        _library.check(_library.load().cistern_clear_cache(_library.Device(_library.CUDA, 0)))
        again = figures.nested(0)["segment"]["all"]
        self.assertEqual(again["freed"], segments["current"] - again["current"])

    def test_empty_buffers_have_addresses_of_their_own(self):
        pointers = [alloc(0) for _ in range(1000)]
        self.assertEqual(len(set(pointers)), 1000)
        self.assertNotIn(None, pointers)
        for pointer in pointers:
            free(pointer, 0)

    def test_out_of_memory_is_told_in_full(self):
        before = figures.nested(0)["num_ooms"]
        self.assertIsNone(alloc(1 << 40))
        text = _library.load().cistern_last_error().decode()
        self.assertTrue(text.startswith("CUDA out of memory. "), text)
        for part in ("1.0 TiB", "limit", "reserved"):
            self.assertIn(part, text)
        self.assertEqual(figures.nested(0)["num_ooms"], before + 1)
        again = alloc(MiB)
        self.assertIsNotNone(again)
        free(again, MiB)

    def test_sizes_that_cannot_be(self):
        self.assertIsNone(alloc(-1))
        self.assertIn("-1 bytes", _library.load().cistern_last_error().decode())
        self.assertIsNone(_library.load().cistern_torch_try_alloc(1, 64, None))
        self.assertIn("device cuda:64 is not available; there is 1: cuda:0", _library.load().cistern_last_error().decode())

    def test_numbers_that_c_would_change_are_refused(self):
        def refused(kind, text, call, *arguments):
            with self.assertRaisesRegex(kind, text):
                call(*arguments)

        limit = _library.stats(0).memory_limit
        for value in (-1, 2**64, 2**70):
            refused(ValueError, f"limit in bytes {value}: expected", _library.set_limit, "cistern_set_memory_limit", value, 0)
            refused(ValueError, f"history {value}: expected", snapshot.record, value)
        refused(TypeError, "history 1.5: expected a whole number", snapshot.record, 1.5)
        self.assertEqual(_library.stats(0).memory_limit, limit)
        for device in (-1, 64, 2**32):
            for call in (_library.stats, _library.figures, figures.nested, figures.reset_peaks, figures.reset_accumulated):
                refused(ValueError, f"device {device}: expected 0 to 63", call, device)
        refused(ValueError, "number of devices -1", snapshot.take, -1)
        refused(TypeError, "pickle protocol None", snapshot.save, "unused", None)
        self.assertEqual(_library.set_limit("cistern_set_memory_limit", 2**64 - 1, 0), limit)
        self.assertEqual(_library.set_limit("cistern_set_memory_limit", limit, 0), 2**64 - 1)

    def test_a_destroyed_stream(self):
        _library.stream_destroyed(0, 0)
        with self.assertRaisesRegex(ValueError, "device cuda:63 is not available; there is 1"):
            _library.stream_destroyed(0x1000, 63)
        with self.assertRaisesRegex(ValueError, "stream -1: expected"):
            _library.stream_destroyed(-1, 0)

    def test_another_library_is_refused_by_name(self):
        environment = dict(os.environ, CISTERN_TORCH_LIBRARY=os.environ["CISTERN_CUDA_LIBRARY"],
                           PYTHONPATH=os.path.join(ROOT, "python"), PYTHONDONTWRITEBYTECODE="1")
        done = subprocess.run([sys.executable, "-c", "from cistern import _library; _library.load()"], text=True,
                              capture_output=True, env=environment)
        last = done.stderr.strip().splitlines()[-1]
        self.assertTrue(last.startswith("OSError: cistern: "), done.stderr)
        self.assertIn(os.environ["CISTERN_CUDA_LIBRARY"], last)

    def check_tiles(self, taken):
        for segment in taken["segments"]:
            at, active = segment["address"], 0
            for block in segment["blocks"]:
                self.assertEqual(block["address"], at)
                self.assertLessEqual(block["requested_size"], block["size"])
                active += block["size"] if block["state"] == "active_allocated" else 0
                at += block["size"]
            self.assertEqual(at, segment["address"] + segment["total_size"])
            self.assertEqual(segment["active_size"], active)

    def test_a_snapshot_tiles_its_segments(self):
        snapshot.record(1000)
        kept = {alloc(size): size for size in (0, 1, 100, 512, 513, 5000, 70_000, MiB, 5 * MiB + 7, 9 * MiB)}
        dropped = [(alloc(size), size) for size in (300, 4000, 3 * MiB)]
        for pointer, size in dropped:
            free(pointer, size)
        taken = snapshot.take(2)
        self.check_tiles(taken)
        self.assertEqual(len(taken["device_traces"]), 2)
        blocks = {b["address"]: b for s in taken["segments"] for b in s["blocks"]}
        for pointer, size in kept.items():
            self.assertEqual(blocks[pointer]["state"], "active_allocated")
            if size:
                self.assertEqual(blocks[pointer]["requested_size"], size)
        self.assertEqual(sum(s["total_size"] for s in taken["segments"]), _library.stats(0).reserved)
        actions = [(e["action"], e["size"]) for e in taken["device_traces"][0]]
        self.assertIn(("alloc", 9 * MiB), actions)
        self.assertIn(("free_requested", 4000), actions)
        self.assertIn(("free_completed", 4000), actions)
        for pointer, size in kept.items():
            free(pointer, size)

    def test_a_saved_snapshot_is_what_the_viewer_reads(self):
        pointer = alloc(2 * MiB)
        for protocol in (2, 3, 4):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "snapshot.pickle")
                snapshot.save(path, protocol)
                with open(path, "rb") as file:
                    data = file.read()
            self.assertEqual(next(pickletools.genops(data))[1], protocol)
            self.check_tiles(pickle.loads(data))
        for protocol in (-1, 1, 5):
            with self.assertRaisesRegex(ValueError, f"protocol {protocol}: expected 2 to 4"):
                snapshot.save("unused", protocol)
        free(pointer, 2 * MiB)

    def test_a_snapshot_that_fails_leaves_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "snapshot.pickle")
            snapshot.save(path)
            with unittest.mock.patch.object(snapshot, "take", side_effect=OSError("no library")):
                with self.assertRaisesRegex(OSError, "no library"):
                    snapshot.save(path)
            with open(path, "rb") as file:
                self.assertIn("segments", pickle.load(file))

    def test_the_history_keeps_the_newest(self):
        snapshot.record(10)
        for size in range(100, 120):
            free(alloc(size), size)
        events = snapshot.take()["device_traces"][0]
        self.assertEqual([e["size"] for e in events if e["action"] == "alloc"], [115, 116, 117, 118, 119])

    def test_another_capacity_keeps_what_fits(self):
        def recorded():
            return [(e["action"], e["size"]) for e in snapshot.take()["device_traces"][0] if e["action"] != "free_requested"]

        def churn(*sizes):
            for size in sizes:
                free(alloc(size), size)

        snapshot.record(6)
        churn(100, 101, 102, 103)  # The ring has gone round.
        newest = [("alloc", 101), ("free_completed", 101), ("alloc", 102), ("free_completed", 102), ("alloc", 103),
                  ("free_completed", 103)]
        self.assertEqual(recorded(), newest)
        snapshot.record(8, clear=False)
        self.assertEqual(recorded(), newest)
        churn(104, 105)
        longer = newest[2:] + [("alloc", 104), ("free_completed", 104), ("alloc", 105), ("free_completed", 105)]
        self.assertEqual(recorded(), longer)
        snapshot.record(3, clear=False)
        self.assertEqual(recorded(), longer[-3:])
        churn(106)
        self.assertEqual(recorded(), [longer[-1], ("alloc", 106), ("free_completed", 106)])
        snapshot.record(3, clear=False)
        self.assertEqual(len(recorded()), 3)
        snapshot.record(3)
        self.assertEqual(snapshot.take(1)["device_traces"], [[]])
        churn(107)
        snapshot.record(0, clear=False)
        self.assertEqual(snapshot.take(1)["device_traces"], [[]])

    def test_threads(self):
        start = figures.nested(0)["requested_bytes"]["all"]["current"]
        failures = []

        def work(seed):
            live = []
            for i in range(300):
                size = (seed * 7919 + i * 104729) % (1 << 18)
                pointer = alloc(size)
                if pointer is None:
                    failures.append(size)
                live.append((pointer, size))
                if len(live) > 20:
                    free(*live.pop(0))
            for pointer, size in live:
                free(pointer, size)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(figures.nested(0)["requested_bytes"]["all"]["current"], start)

    def test_limits_and_cache(self):
        library = _library.load()
        pointer = alloc(20 * MiB)
        free(pointer, 20 * MiB)
        library.cistern_torch_reset()
        self.assertLess(_library.stats(0).reserved, 20 * MiB)
        library.cistern_torch_memory_fraction(0.25, 0)
        stats = _library.stats(0)
        self.assertEqual(stats.memory_limit, stats.total_memory // 4)
        self.assertIsNone(alloc(stats.memory_limit + 1))
        library.cistern_torch_memory_fraction(1.0, 0)


if __name__ == "__main__":
    os.environ["CISTERN_TORCH_LIBRARY"], os.environ["CISTERN_CUDA_LIBRARY"] = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
