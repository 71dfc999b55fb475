"""CuPy on Cistern: `import cistern.cupy; cistern.cupy.install()`. Arrays are freed in the order of the stream that was
current when they were made, as with CuPy's own pool.

A cupy.cuda.Stream destroys its CUDA stream when it is collected; Cistern is told just before. Who destroys a stream that
CuPy did not make says stream_destroyed() first.
"""

import functools
import sys
import warnings

import cupy

from . import _library

__all__ = ["allocator", "install", "stream_destroyed"]

_OWNED_BY_NOBODY = 2  # Handles up to here are names: the default stream, the legacy one, that of each thread.


def _malloc(size, device):
    library = _library.load()
    size, device = _library.integer(size, "size in bytes", _library.MAX_SIZE), _library.device_index(device)
    stream = cupy.cuda.get_current_stream().ptr
    ptr = library.cistern_torch_try_alloc(size, device, stream)
    if not ptr:
        there = library.cistern_device_available(_library.Device(_library.CUDA, device))
        raise (MemoryError if there else ValueError)(library.cistern_last_error().decode(errors="replace"))
    _sizes[ptr] = (size, device, stream)
    return ptr


def _free(ptr, device):
    if not ptr:
        return
    if ptr not in _sizes:
        raise ValueError(f"cistern: free of {ptr:#x}: no live memory of Cistern starts there")
    size, owner, stream = _sizes[ptr]
    if device != owner:
        raise ValueError(f"cistern: free of {ptr:#x}: device {device!r}: expected {owner}, where its memory is")
    del _sizes[ptr]
    _library.load().cistern_torch_free(ptr, size, owner, stream)


_sizes = {}
_allocator = None


def allocator():
    """The cupy.cuda.PythonFunctionAllocator over Cistern; give its malloc to cupy.cuda.using_allocator() or
    set_allocator()."""
    global _allocator
    if _allocator is None:
        _library.load()
        _watch(cupy.cuda.Stream)
        _allocator = cupy.cuda.PythonFunctionAllocator(_malloc, _free)
    return _allocator


def install():
    cupy.cuda.set_allocator(allocator().malloc)


def stream_destroyed(stream, device=None):
    """Says that a stream is about to be destroyed by who made it: before the handle is gone, for every stream that
    allocated, freed or was recorded. `stream`: a CuPy stream or a handle. `device` left out: the stream's, else the
    current one. CuPy's own streams say it by themselves."""
    if device is None:
        device = getattr(stream, "device_id", -1)
        if device == -1:
            device = cupy.cuda.Device().id
    _library.stream_destroyed(getattr(stream, "ptr", stream), device)


def _watch(kind):
    """Has the class say so before its own finalizer destroys the stream. A weak reference would be told too late."""
    destroy = getattr(kind, "__del__", None)

    # At the end of the process CuPy destroys nothing, and modules are half gone. A stream that it was lent
    # (Stream.from_external) lives on, and so must what Cistern knows of it.
    def __del__(self, *arguments, finalizing=sys.is_finalizing, **named):
        try:
            lent = getattr(self, "_foreign_stream_ref", None) is not None
            if not finalizing() and not lent and getattr(self, "ptr", 0) > _OWNED_BY_NOBODY:
                stream_destroyed(self)
        finally:
            destroy(self, *arguments, **named)

    try:
        if destroy is None:
            raise TypeError("it has no __del__")
        kind.__del__ = functools.wraps(destroy)(__del__)
    except TypeError as error:
        warnings.warn(f"cistern: {kind.__name__} of this CuPy cannot be watched ({error}): say "
                      "cistern.cupy.stream_destroyed() before a stream goes", RuntimeWarning, stacklevel=3)
