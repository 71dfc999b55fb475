"""CuPy on Cistern: `import cistern.cupy; cistern.cupy.install()`. Arrays are freed in the order of the stream that was
current when they were made, as with CuPy's own pool.
"""

import cupy

from . import _library

__all__ = ["allocator", "install"]


def _malloc(size, device):
    library = _library.load()
    stream = cupy.cuda.get_current_stream().ptr
    ptr = library.cistern_torch_try_alloc(size, device, stream)
    if not ptr:
        raise MemoryError(library.cistern_last_error().decode(errors="replace"))
    _sizes[ptr] = (size, stream)
    return ptr


def _free(ptr, device):
    if not ptr:
        return
    size, stream = _sizes.pop(ptr)
    _library.load().cistern_torch_free(ptr, size, device, stream)


_sizes = {}
_allocator = None


def allocator():
    """The cupy.cuda.PythonFunctionAllocator over Cistern; give its malloc to cupy.cuda.using_allocator() or
    set_allocator()."""
    global _allocator
    if _allocator is None:
        _library.load()
        _allocator = cupy.cuda.PythonFunctionAllocator(_malloc, _free)
    return _allocator


def install():
    cupy.cuda.set_allocator(allocator().malloc)
