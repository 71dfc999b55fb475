"""What must work under PyTorch and CuPy on a real device, each check in a process of its own: graphs, pools, memory that
runs out, figures, snapshots, streams, threads. Prints one line a check; exit status 1 when one failed. Usage:
checks.py [NAME...].
"""

import gc
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time

MiB = 1 << 20


def start(**options):
    import torch

    import cistern.torch
    cistern.torch.install(**options)
    return torch


def churn(torch, seed, steps=200):
    generator, live = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        size = 1 << int(torch.randint(8, 26, (1,), generator=generator))
        live.append(torch.empty(size, dtype=torch.uint8, device="cuda").fill_(seed % 251))
        if len(live) > 20:
            live.pop(int(torch.randint(len(live), (1,), generator=generator)))


def figures():
    torch = start()
    assert torch.cuda.memory.get_allocator_backend() == "pluggable"
    before = torch.cuda.memory_allocated()
    x = torch.empty(10 * MiB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == 10 * MiB
    assert torch.cuda.memory_stats()["requested_bytes.all.current"] >= 10 * MiB
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= 10 * MiB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocated_bytes.all.freed"] == 0
    assert torch.cuda.memory_reserved() >= before
    torch.cuda.empty_cache()
    assert "Active memory" in torch.cuda.memory_summary()
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert abs(torch.cuda.get_per_process_memory_fraction() - 0.5) < 1e-3


def empty_tensors():
    torch = start()
    pointers = [torch.cuda.caching_allocator_alloc(0) for _ in range(100)]
    assert len(set(pointers)) == 100 and 0 not in pointers
    for pointer in pointers:
        torch.cuda.caching_allocator_delete(pointer)
    assert torch.empty(0, device="cuda").sum().item() == 0


def out_of_memory_plain():
    torch = start(out_of_memory=None)
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        assert "CUDA out of memory" in str(error) and "1.0 TiB" in str(error), error
    else:
        raise AssertionError("no error")
    assert torch.ones(1000, device="cuda").sum().item() == 1000


def out_of_memory_own_type():
    torch = start(out_of_memory="build")
    for _ in range(3):
        try:
            kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(1000)]
        except torch.cuda.OutOfMemoryError as error:
            assert "CUDA out of memory" in str(error), error
            kept = None
        else:
            raise AssertionError("no error", len(kept))
        gc.collect()
        assert torch.ones(1000, device="cuda").sum().item() == 1000
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    fraction = int(free * 0.9)
    largest = torch.empty(fraction, dtype=torch.uint8, device="cuda")
    assert largest.numel() == fraction and torch.cuda.memory_stats()["num_ooms"] == 3


def graph():
    torch = start()
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
    inputs = torch.randn(64, 512, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(inputs)
    torch.cuda.current_stream().wait_stream(side)
    stop = threading.Event()

    def busy():
        # Allocations of another thread must not end the capture.
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():
                torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(3 * MiB))

    other = threading.Thread(target=busy, daemon=True)
    other.start()
    captured, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        outputs = model(inputs) * 2
        for _ in range(5):
            outputs = torch.cat([outputs, outputs])[:64] + 0
    with torch.cuda.graph(second, pool=captured.pool()):
        more = model(inputs).softmax(-1)
    stop.set()
    other.join()
    for seed in range(5):
        churn(torch, seed)
        torch.cuda.empty_cache()
        inputs.copy_(torch.randn(64, 512, device="cuda"))
        captured.replay()
        torch.testing.assert_close(outputs, model(inputs) * 2, rtol=1e-4, atol=1e-4)
        second.replay()
        torch.testing.assert_close(more, model(inputs).softmax(-1), rtol=1e-4, atol=1e-4)
    pools = {s["segment_pool_id"] for s in torch.cuda.memory._snapshot()["segments"]}
    assert len(pools) == 2, pools
    del captured, second, outputs, more, inputs, model
    gc.collect()
    torch.cuda.empty_cache()
    assert {s["segment_pool_id"] for s in torch.cuda.memory._snapshot()["segments"]} <= {(0, 0)}


def make_graphed_callables():
    torch = start()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256)).cuda()
    sample = torch.randn(32, 256, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    for _ in range(10):
        x = torch.randn(32, 256, device="cuda", requires_grad=True)
        graphed(x).square().sum().backward()
        assert torch.isfinite(x.grad).all()


def failed_capture():
    torch = start()
    torch.ones(1, device="cuda")
    reserved = []
    for _ in range(4):
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                x = torch.empty(64 * MiB, dtype=torch.uint8, device="cuda").fill_(1)
                torch.cuda.synchronize()  # Not allowed in a capture.
        except RuntimeError:
            x = None
        else:
            raise AssertionError("the capture did not fail")
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] < 64 * MiB, reserved
    fine = torch.cuda.CUDAGraph()
    with torch.cuda.graph(fine):
        y = torch.zeros(1000, device="cuda") + 1
    fine.replay()
    assert y.sum().item() == 1000


def mem_pool():
    import torch

    import cistern.torch
    pool = cistern.torch.mem_pool()
    outside = torch.ones(MiB, device="cuda")
    with torch.cuda.use_mem_pool(pool):
        inside = torch.full((8 * MiB,), 2.0, device="cuda")
    assert cistern.torch.memory_stats()["active"] >= 32 * MiB
    assert inside.sum().item() == 16 * MiB and outside.sum().item() == MiB
    del inside, pool
    gc.collect()
    torch.cuda.empty_cache()
    assert cistern.torch.memory_stats()["active"] == 0, cistern.torch.memory_stats()


def snapshot():
    torch = start()
    from torch.cuda import _memory_viz

    torch.cuda.memory._record_memory_history(max_entries=10000)
    kept = [torch.empty(int(s) * 1000, dtype=torch.uint8, device="cuda") for s in range(1, 300, 7)]
    del kept[::2]
    try:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
    except RuntimeError:
        pass
    taken = torch.cuda.memory._snapshot()
    for segment in taken["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        with open(path, "rb") as file:
            loaded = pickle.load(file)
    assert "total_reserved" in _memory_viz.segsum(loaded)
    assert "raise OutOfMemoryError" in _memory_viz.trace(loaded)
    assert "Active Memory Timeline" in _memory_viz.trace_plot(loaded)
    assert _memory_viz.segment_plot(loaded)
    _memory_viz.memory(loaded, format_flamegraph=str)
    import cistern.torch
    names = [e["action"] for e in taken["device_traces"][0]]
    assert names.count("alloc") >= len(kept) and names.count("free_completed") > 10 and "oom" in names
    assert any(b["requested_size"] != b["size"] for s in taken["segments"] for b in s["blocks"] if b["requested_size"])


def streams():
    torch = start()
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    wrong = torch.zeros((), device="cuda", dtype=torch.int64)
    torch.cuda.synchronize()
    for i in range(300):
        with torch.cuda.stream(one):
            x = torch.full((4 * MiB,), i, device="cuda", dtype=torch.int32)
        two.wait_stream(one)
        with torch.cuda.stream(two):
            torch.cuda._sleep(200_000)
            wrong += (x != i).sum()
        x.record_stream(two)
        del x
    torch.cuda.synchronize()
    assert wrong.item() == 0, wrong.item()


def threads():
    torch = start()
    failures = []

    def work(seed):
        try:
            with torch.cuda.stream(torch.cuda.Stream() if seed % 2 else torch.cuda.default_stream()):
                churn(torch, seed)
        except Exception as error:
            failures.append(error)

    everybody = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for one in everybody:
        one.start()
    for one in everybody:
        one.join()
    assert not failures, failures


def cupy_arrays():
    import cupy

    import cistern.cupy
    cistern.cupy.install()
    from cistern import _library
    x = cupy.arange(10 * MiB, dtype=cupy.float32)
    assert _library.stats(0).active >= 40 * MiB
    assert float((x + 1)[:1000].sum()) == 500500.0
    with cupy.cuda.Stream(non_blocking=True):
        y = cupy.ones(MiB) * 3
        assert float(y.sum()) == 3 * MiB
    try:
        cupy.empty(1 << 42, dtype=cupy.uint8)
    except MemoryError as error:
        assert "out of memory" in str(error)
    else:
        raise AssertionError("no error")
    del x, y
    gc.collect()
    assert _library.stats(0).active == 0, _library.stats(0).active


def pair_cost():
    """Nanoseconds for a raw_alloc and its raw_delete, from Python: for information."""
    torch = start()

    def pairs(size, stream):
        alloc, delete = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
        for count in (1000, 20000):
            begin = time.perf_counter()
            for _ in range(count):
                delete(alloc(size, stream))
        return (time.perf_counter() - begin) / count * 1e9

    torch.ones(1, device="cuda")
    side = torch.cuda.Stream().cuda_stream
    print("  " + ", ".join(f"{size} B {pairs(size, 0):.0f} ns (side stream {pairs(size, side):.0f})"
                           for size in (512, 100_000, 8 * MiB)))


CHECKS = [figures, empty_tensors, out_of_memory_plain, out_of_memory_own_type, graph, make_graphed_callables,
          failed_capture, mem_pool, snapshot, streams, threads, cupy_arrays, pair_cost]


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        import faulthandler
        faulthandler.dump_traceback_later(50, exit=True)
        globals()[sys.argv[2]]()
        return
    failed = 0
    for name in sys.argv[1:] or [check.__name__ for check in CHECKS]:
        begin = time.time()
        command = [sys.executable, "-X", "faulthandler", "-W", "ignore", __file__, "--one", name]
        with tempfile.TemporaryFile("w+") as output:
            try:
                good = subprocess.run(command, stdout=output, stderr=output, timeout=60).returncode == 0
            except subprocess.TimeoutExpired:
                good = False
            output.seek(0)
            text = output.read()
        failed += not good
        print(f"{'passed' if good else 'FAILED'} {name} ({time.time() - begin:.1f} s)", flush=True)
        if text.strip():
            print(text[-2500:].rstrip(), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
