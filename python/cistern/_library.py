"""The shared library and its C types. Loads it once, by the first of: $CISTERN_TORCH_LIBRARY, the file beside this module,
the loader's search path. Raises OSError that names the places. Thread-safe.
"""

import ctypes
import operator
import os
import threading
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_uint64
from ctypes import c_void_p

NAME = "libcistern_torch.so"
CUDA = 1  # cistern_device_type

INVALID_ARGUMENT, OUT_OF_MEMORY = 1, 2
MAX_DEVICES = 64
MAX_BYTES = 2**64 - 1  # Of a size_t, which an address fits too.
MAX_SIZE = 2**63 - 1  # Of the ptrdiff_t that a request is.


class Device(Structure):
    _fields_ = [("type", c_int32), ("index", c_int32)]


class Stats(Structure):
    _fields_ = [("struct_size", c_size_t)] + [(name, c_uint64) for name in (
        "active", "peak_active", "reserved", "peak_reserved", "cached", "views", "memory_limit", "cache_limit",
        "wired_limit", "total_memory", "live_buffers", "handles", "handles_created", "handles_moved",
        "handles_released", "handles_split", "driver_calls", "host_waits", "late_double_frees",
        "objects")]


class Figure(Structure):
    _fields_ = [("current", c_int64), ("peak", c_int64), ("allocated", c_int64)]


class Figures(Structure):
    _fields_ = [("struct_size", c_size_t), ("count", Figure * 2), ("requested", Figure * 2), ("capacity", Figure * 2),
                ("peak_count", c_int64), ("peak_requested", c_int64), ("peak_capacity", c_int64),
                ("out_of_memory", c_int64)]


class Segment(Structure):
    _fields_ = [(name, c_uint64) for name in (
        "address", "bytes", "stream", "pool_first", "pool_second", "first_block", "blocks")] + [
            ("device", c_int32), ("unused", c_int32)]


class Block(Structure):
    _fields_ = [("address", c_uint64), ("bytes", c_uint64), ("requested", c_uint64), ("live", c_int32),
                ("unused", c_int32)]


class Event(Structure):
    _fields_ = [("address", c_uint64), ("bytes", c_uint64), ("stream", c_uint64), ("time_us", c_int64),
                ("action", c_int32), ("device", c_int32)]


def _declare(library):
    def declare(name, result, *arguments):
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(arguments)

    status = c_int
    declare("cistern_c_version", ctypes.c_uint32)
    declare("cistern_last_error", c_char_p)
    declare("cistern_device_available", c_int, Device)
    declare("cistern_get_stats", status, Device, POINTER(Stats))
    declare("cistern_reset_peaks", status, Device)
    declare("cistern_clear_cache", status, Device)
    declare("cistern_set_memory_limit", status, Device, c_size_t, POINTER(c_size_t))
    declare("cistern_set_cache_limit", status, Device, c_size_t, POINTER(c_size_t))
    declare("cistern_torch_try_alloc", c_void_p, c_ssize_t, c_int, c_void_p)
    declare("cistern_torch_free", None, c_void_p, c_ssize_t, c_int, c_void_p)
    declare("cistern_torch_init", None, c_int)
    declare("cistern_torch_reset", None)
    declare("cistern_torch_memory_fraction", None, c_double, c_int)
    declare("cistern_torch_base_allocation", c_void_p, c_void_p, POINTER(c_size_t))
    declare("cistern_torch_record_stream", None, c_void_p, c_void_p)
    declare("cistern_torch_stream_destroyed", status, c_int, c_void_p)
    declare("cistern_torch_newest_begin", c_uint64)
    declare("cistern_torch_abort_begin", c_int, c_uint64)
    declare("cistern_torch_set_out_of_memory_handler", None, c_void_p)
    declare("cistern_torch_get_figures", status, c_int, POINTER(Figures))
    declare("cistern_torch_reset_peaks", status, c_int)
    declare("cistern_torch_reset_accumulated", status, c_int)
    declare("cistern_torch_record_history", status, c_size_t, c_int)
    declare("cistern_torch_take_snapshot", status, POINTER(c_void_p))
    declare("cistern_torch_drop_snapshot", None, c_void_p)
    for name, kind in (("segments", Segment), ("blocks", Block), ("events", Event)):
        declare("cistern_torch_" + name, POINTER(kind), c_void_p, POINTER(c_size_t))


_lock = threading.Lock()
_loaded = None
_path = None


def path():
    """The library's file, as the loader is given it."""
    chosen = os.environ.get("CISTERN_TORCH_LIBRARY")
    if chosen:
        return chosen
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME)
    return beside if os.path.exists(beside) else NAME


def load():
    global _loaded, _path
    with _lock:
        if _loaded is None:
            where = path()
            try:
                library = ctypes.CDLL(where)
            except OSError as error:
                raise OSError(f"cistern: cannot load {where}: {error}. Set CISTERN_TORCH_LIBRARY to the file {NAME}, "
                              "which a build of Cistern with CISTERN_TORCH=ON makes") from error
            try:
                _declare(library)
            except AttributeError as error:
                raise OSError(f"cistern: {where} is no {NAME} of this version: {error}") from error
            _loaded, _path = library, where
        return _loaded


def check(status):
    """Raises what a status of the C interface says."""
    if status == 0:
        return
    text = load().cistern_last_error().decode(errors="replace")
    raise (ValueError if status == INVALID_ARGUMENT else MemoryError if status == OUT_OF_MEMORY else RuntimeError)(text)


def integer(value, name, most=MAX_BYTES, least=0):
    """`value` as a whole number in these bounds: C's types would take another one without a word, and change it."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"cistern: {name} {value!r}: expected a whole number, {least} to {most}") from None
    if not least <= number <= most:
        raise ValueError(f"cistern: {name} {value!r}: expected {least} to {most}")
    return number


def device_index(value):
    return integer(value, "device", MAX_DEVICES - 1)


def address(name):
    """Where an exported function is."""
    return ctypes.cast(getattr(load(), name), c_void_p).value


def stats(index):
    out = Stats(struct_size=ctypes.sizeof(Stats))
    check(load().cistern_get_stats(Device(CUDA, device_index(index)), byref(out)))
    return out


def figures(index):
    out = Figures(struct_size=ctypes.sizeof(Figures))
    check(load().cistern_torch_get_figures(device_index(index), byref(out)))
    return out


def set_limit(function, limit, index):
    """Of cistern_set_memory_limit and its like. Returns the previous limit."""
    previous = c_size_t()
    limit = integer(limit, "limit in bytes")
    check(getattr(load(), function)(Device(CUDA, device_index(index)), limit, byref(previous)))
    return previous.value


def stream_destroyed(handle, index):
    handle = integer(handle, "stream")
    check(load().cistern_torch_stream_destroyed(device_index(index), handle))
