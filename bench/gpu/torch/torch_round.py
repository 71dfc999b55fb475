#!/usr/bin/env python3
"""PyTorch's caching allocator under the same work as Cistern's, on the machine of a GPU round.

usage: torch_round.py pairs
       torch_round.py events PROGRAM TRACE.csv.gz...

Compiles torch_events.cpp against the installed PyTorch and prints one figure a line as JSON, as the round's program does.
`events` runs PROGRAM, which is that program, by turns with PyTorch on each trace, and prints its figures as well: shared
hosts change their speed by a factor of two within seconds, and each processor for itself. Each turn has a fresh allocator,
PyTorch's an empty cache. Both processes live through all turns of a trace, since the first one in a process pays for fresh
pages and cold code, and both run on the same processor in a turn, another one in the next.
"""
import ctypes
import gzip
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.utils import cpp_extension


def report(part: str, case: str, figure: str, value: float) -> None:
    print(json.dumps({"part": part, "case": case, "figure": figure, "value": value}), flush=True)


def load() -> ctypes.CDLL:
    source = Path(__file__).with_name("torch_events.cpp")
    try:
        include = cpp_extension.include_paths(device_type="cuda")
        libraries = cpp_extension.library_paths(device_type="cuda")
    except TypeError:
        include, libraries = cpp_extension.include_paths(cuda=True), cpp_extension.library_paths(cuda=True)
    out = Path(tempfile.mkdtemp()) / "torch_events.so"
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O3", "-shared", "-fPIC", str(source), "-o", str(out)]
    command += [f"-I{path}" for path in include] + [f"-L{path}" for path in libraries]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", "-lc10", "-lc10_cuda", "-pthread"]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(out))
    library.torch_pairs.restype = ctypes.c_double
    library.torch_pairs.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    library.torch_threads.restype = ctypes.c_double
    library.torch_threads.argtypes = [ctypes.c_uint, ctypes.c_uint64, ctypes.c_uint64]
    library.torch_replay.restype = None
    library.torch_replay.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint, ctypes.c_uint,
                                     ctypes.POINTER(ctypes.c_double)]
    return library


def read(path: str) -> tuple[bytes, int, int, int]:
    """The trace as packed ops, their count, the slots they use, and the streams."""
    ops, slot_of, free, streams, slots = bytearray(), {}, [], {"0": 0}, 0
    with gzip.open(path, "rt", encoding="utf-8") as file:
        next(file)
        for line in file:
            event, block, size, stream, *_ = line.rstrip("\n").split(",")
            index = streams.setdefault(stream, len(streams))
            if event == "a":
                if not free:
                    free.append(slots)
                    slots += 1
                slot_of[block] = free.pop()
                ops += struct.pack("<QIHBB", int(size), slot_of[block], index, 0, 0)
            elif event == "f":
                slot = slot_of.pop(block)
                free.append(slot)
                ops += struct.pack("<QIHBB", int(size), slot, index, 1, 0)
    return bytes(ops), len(ops) // 16, slots, len(streams)


def pairs(library: ctypes.CDLL) -> None:
    for size in (512, 64 << 10, 1 << 20, 16 << 20):
        report("pairs", str(size), "torch_ns", library.torch_pairs(size, 200_000))
    allocate, delete = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    start = time.perf_counter()
    for _ in range(200_000):
        delete(allocate(65536, 0))
    report("pairs", "65536", "torch_python_ns", (time.perf_counter() - start) * 1e9 / 200_000)
    threads = max(1, min(16, os.cpu_count() or 1))
    for size in (512, 64 << 10, 1 << 20):
        report("threads", str(size), "torch_1", max(library.torch_threads(1, size, 200_000) for _ in range(3)))
        report("threads", str(size), "torch_all", max(library.torch_threads(threads, size, 20_000) for _ in range(3)))


def events(library: ctypes.CDLL, program: str, path: str) -> None:
    passes, turns = 5, 7
    ops, count, slots, streams = read(path)
    name = Path(path).name.removesuffix(".csv.gz")
    ours = subprocess.Popen([program, "turns", "--", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    processors = sorted(os.sched_getaffinity(0))
    for turn in range(turns):
        one = {processors[turn * len(processors) // turns]}
        os.sched_setaffinity(0, one)
        os.sched_setaffinity(ours.pid, one)
        print(file=ours.stdin, flush=True)
        own = {}
        while (line := ours.stdout.readline().strip()):
            print(line, flush=True)
            figure = json.loads(line)
            own[figure["figure"]] = figure["value"]
        if "fifth_ns" not in own:
            raise RuntimeError(f"{program} ended with status {ours.wait()}")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        out = (ctypes.c_double * passes)()
        library.torch_replay(ops, count, slots, streams, passes, out)
        for index, figure in ((0, "first"), (1, "second"), (4, "fifth")):
            report("events", name, f"torch_{figure}_ns", out[index])
            report("events", name, f"{figure}_times", out[index] / own[f"{figure}_ns"])
        report("events", name, "torch_reserved", torch.cuda.max_memory_reserved())
    os.sched_setaffinity(0, processors)
    ours.stdin.close()
    if ours.wait() != 0:
        raise RuntimeError(f"{program} ended with status {ours.returncode}")


def main() -> int:
    what, *rest = sys.argv[1:] or [""]
    if what not in ("pairs", "events") or (what == "events") != (len(rest) > 1):
        print("\n".join(__doc__.splitlines()[2:4]), file=sys.stderr)
        return 2
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    library = load()
    if what == "pairs":
        pairs(library)
    for path in rest[1:]:
        events(library, rest[0], path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
