"""Figures under the names that torch.cuda.memory_stats() uses. Needs no PyTorch.

What PyTorch calls allocated is the capacity of live buffers here, requested what was asked for, reserved the physical
memory mapped, a segment a physical handle. Reserved memory is not told apart into small and large: it stands under
`large_pool`. Not known, and so the present value or the peak: the peak of segments and of inactive bytes, the sum of
reserved bytes over time.
"""

from . import _library

POOLS = ("small_pool", "large_pool")


def _stat(current, peak, allocated):
    return {"current": current, "peak": peak, "allocated": allocated, "freed": allocated - current}


def _by_pool(figure, peak):
    pools = {name: _stat(f.current, f.peak, f.allocated) for name, f in zip(POOLS, figure)}
    total = {key: sum(pool[key] for pool in pools.values()) for key in ("current", "peak", "allocated", "freed")}
    return {"all": dict(total, peak=peak), **pools}


def _large(stat):
    return {"all": stat, "small_pool": _stat(0, 0, 0), "large_pool": dict(stat)}


def _segments(index, stats):
    """Counts since reset_accumulated(). Whole buffers of the device's own pool are no handles that were made."""
    made, gone = _counted.get(index, (0, 0))
    return {"current": stats.handles, "peak": stats.handles, "allocated": stats.handles_created - made,
            "freed": stats.handles_released - gone}


_counted = {}  # By device: handles made and given back when reset_accumulated() was called.


def nested(index):
    """What torch.cuda.memory_stats_as_nested_dict(index) returns."""
    stats, figures = _library.stats(index), _library.figures(index)
    count = _by_pool(figures.count, figures.peak_count)
    capacity = _by_pool(figures.capacity, figures.peak_capacity)
    free = max(stats.reserved - capacity["all"]["current"], 0)
    return {
        "allocation": count,
        "active": count,
        "segment": _large(_segments(index, stats)),
        "inactive_split": _large(_stat(0, 0, 0)),
        "allocated_bytes": capacity,
        "active_bytes": capacity,
        "reserved_bytes": _large(_stat(stats.reserved, stats.peak_reserved, stats.peak_reserved)),
        "inactive_split_bytes": _large(_stat(free, free, free)),
        "requested_bytes": _by_pool(figures.requested, figures.peak_requested),
        "oversize_allocations": _stat(0, 0, 0),
        "oversize_segments": _stat(0, 0, 0),
        "num_alloc_retries": 0,
        "num_ooms": figures.out_of_memory,
        "num_sync_all_streams": stats.host_waits,
        "num_device_alloc": stats.handles_created,
        "num_device_free": stats.handles_released,
        "max_split_size": -1,
    }


def reset_peaks(index):
    _library.check(_library.load().cistern_torch_reset_peaks(_library.device_index(index)))


def reset_accumulated(index):
    index = _library.device_index(index)
    _library.check(_library.load().cistern_torch_reset_accumulated(index))
    stats = _library.stats(index)
    _counted[index] = (stats.handles_created, stats.handles_released)
