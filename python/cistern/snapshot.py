"""Pictures of the memory in PyTorch's format: the dictionary that torch.cuda.memory._snapshot() gives, made from what the
library says. Needs no PyTorch. `save` writes what PyTorch's memory viewer opens.
"""

import pickle
from ctypes import byref, c_size_t, c_void_p

from . import _library

SMALL = 1 << 20  # Bytes; PyTorch's border between its "small" and "large" segments.
ACTIONS = ("alloc", "free_completed", "oom")


def _array(snapshot, name):
    count = c_size_t()
    first = getattr(_library.load(), "cistern_torch_" + name)(snapshot, byref(count))
    return [first[i] for i in range(count.value)]


def _segment(segment, blocks):
    tiles, active, requested = [], 0, 0
    for block in blocks[segment.first_block:segment.first_block + segment.blocks]:
        if block.live:
            active += block.bytes
            requested += block.requested
        tiles.append({
            "address": block.address,
            "size": block.bytes,
            "requested_size": block.requested if block.live else 0,
            "state": "active_allocated" if block.live else "inactive",
            "frames": [],
        })
    return {
        "device": segment.device,
        "address": segment.address,
        "total_size": segment.bytes,
        "allocated_size": active,
        "active_size": active,
        "requested_size": requested,
        "stream": segment.stream,
        "segment_type": "small" if segment.bytes <= SMALL else "large",
        "segment_pool_id": (segment.pool_first, segment.pool_second),
        "is_expandable": True,
        "frames": [],
        "blocks": tiles,
    }


def _event(event):
    entry = {
        "action": ACTIONS[event.action],
        "size": event.bytes,
        "stream": event.stream,
        "time_us": event.time_us,
        "frames": [],
    }
    if entry["action"] == "oom":
        entry["device_free"] = event.address
    else:
        entry["addr"] = event.address
    return entry


def take(devices=None):
    """The snapshot of all devices that were allocated on. `devices`: how many lists of events it shall have at least."""
    least = 0 if devices is None else _library.integer(devices, "number of devices", _library.MAX_DEVICES)
    library = _library.load()
    handle = c_void_p()
    _library.check(library.cistern_torch_take_snapshot(byref(handle)))
    try:
        segments, blocks, events = (_array(handle, name) for name in ("segments", "blocks", "events"))
        made = [_segment(segment, blocks) for segment in segments]
        last = max([s.device for s in segments] + [e.device for e in events], default=-1)
        traces = [[] for _ in range(max(least, last + 1))]
        for event in events:
            # PyTorch tells of a free twice: when it is asked for, and when the memory may serve again.
            if event.action == 1:
                traces[event.device].append(dict(_event(event), action="free_requested"))
            traces[event.device].append(_event(event))
    finally:
        library.cistern_torch_drop_snapshot(handle)
    return {
        "segments": made,
        "device_traces": traces,
        "allocator_settings": {"expandable_segments": True, "backend": "cistern"},
        "external_annotations": [],
    }


def save(path="snapshot.pickle", protocol=4):
    """Writes a snapshot that https://pytorch.org/memory_viz opens."""
    protocol = _library.integer(protocol, "pickle protocol", 4, least=2)  # What the viewer reads.
    data = pickle.dumps(take(), protocol=protocol)  # Before a file that is there is lost.
    with open(path, "wb") as file:
        file.write(data)


def record(capacity=100_000, clear=True):
    """Keeps the newest `capacity` events for the snapshot's timeline; 0 ends it and forgets them. Events recorded before
    stay, as many as fit, unless `clear`."""
    capacity = _library.integer(capacity, "capacity of the history")
    _library.check(_library.load().cistern_torch_record_history(capacity, 1 if clear else 0))
