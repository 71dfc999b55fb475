"""Runs the workloads under one allocator in one process and prints a line of JSON for each. Usage: one.py ALLOCATOR
[--turns] [NAME...], where ALLOCATOR is native, expandable or cistern. With --turns it prints `ready` before each step and
waits for a line on its input, so that several processes take turns.

Peaks are those of the second half of the steps and of the whole run, so that a first, growing pass shows. Bytes, seconds.
"""

import gc
import hashlib
import json
import os
import sys
import time

ALLOCATOR = sys.argv[1]
if ALLOCATOR == "expandable":
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402

if ALLOCATOR == "cistern":
    import cistern.torch

    cistern.torch.install()

from workloads import WORKLOADS  # noqa: E402

# The same results to the last bit, so that a byte that an allocator spoils is seen.
torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = False
# These two give other bits from one run to the next.
torch.backends.cuda.enable_cudnn_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)


TURNS = "--turns" in sys.argv


def wait_for_turn():
    if TURNS:
        print("ready", flush=True)
        sys.stdin.readline()


def run(name):
    workload, steps = WORKLOADS[name]
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    results, times = [], []
    torch.cuda.synchronize()
    wait_for_turn()
    begin = time.perf_counter()
    for result in workload(steps):
        torch.cuda.synchronize()
        end = time.perf_counter()
        results.append(result)
        times.append(end - begin)
        wait_for_turn()
        begin = time.perf_counter()
    stats = torch.cuda.memory_stats()
    line = {
        "workload": name,
        "allocator": ALLOCATOR,
        "results": results if not isinstance(results[0], list) else hashlib.sha256(repr(results).encode()).hexdigest(),
        "peak_requested": stats["requested_bytes.all.peak"],
        "peak_allocated": stats["allocated_bytes.all.peak"],
        "peak_reserved": stats["reserved_bytes.all.peak"],
        "ooms": stats["num_ooms"],
        "seconds": times,
    }
    if ALLOCATOR == "cistern":
        line["cistern"] = cistern.torch.memory_stats()
    print(json.dumps(line), flush=True)


for chosen in [name for name in sys.argv[2:] if name != "--turns"] or WORKLOADS:
    run(chosen)
