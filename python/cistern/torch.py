"""PyTorch on Cistern.

    import cistern.torch
    cistern.torch.install()          # Before the first CUDA tensor.

From then on PyTorch's device memory comes from Cistern, and what PyTorch refuses to say about a foreign allocator works:
torch.cuda.memory_stats() and all that stands on it, resets of peaks, torch.cuda.memory._snapshot() and
_record_memory_history() (without stack frames), torch.cuda.set_per_process_memory_fraction(). Graphs and their pools work
as before. Out of memory is torch.cuda.OutOfMemoryError once build_out_of_memory() has compiled a small part against this
PyTorch; without it a RuntimeError with the same text.

To use Cistern beside PyTorch's own allocator: `with torch.cuda.use_mem_pool(cistern.torch.mem_pool()): ...`.
"""

import ctypes
import functools
import os

import torch

from . import _library, figures, snapshot

__all__ = ["install", "installed", "mem_pool", "plugin", "build_out_of_memory", "memory_stats", "set_memory_limit",
           "set_cache_limit", "stream_destroyed", "snapshot", "figures"]

_HOOKS = {
    "set_init_fn": "cistern_torch_init",
    "set_reset_fn": "cistern_torch_reset",
    "set_memory_fraction_fn": "cistern_torch_memory_fraction",
    "set_base_alloc_fn": "cistern_torch_base_allocation",
    "set_record_stream_fn": "cistern_torch_record_stream",
    "set_begin_allocate_to_pool": "cistern_torch_begin_pool",
    "set_end_allocate_to_pool_fn": "cistern_torch_end_pool",
    "set_release_pool": "cistern_torch_release_pool",
}
_plugin = None
_installed = False
_patched = False
_handler = None  # The compiled part in use.
_EVENTS, _MOST_EVENTS = 1_000_000, 10_000_000  # Of the history: left out, and at most (400 MB).


def plugin():
    """The torch.cuda.memory.CUDAPluggableAllocator over Cistern, made once."""
    global _plugin
    if _plugin is None:
        _library.load()
        made = torch.cuda.memory.CUDAPluggableAllocator(_library._path, "cistern_torch_alloc", "cistern_torch_free")
        for setter, function in _HOOKS.items():
            # Older versions know fewer hooks.
            if hasattr(made.allocator(), setter):
                getattr(made.allocator(), setter)(_library.address(function))
        _plugin = made
    return _plugin


def mem_pool():
    """A torch.cuda.MemPool whose memory comes from Cistern, beside PyTorch's own allocator."""
    return torch.cuda.MemPool(plugin().allocator())


def installed():
    return _installed


def install(patch=True, out_of_memory="cached"):
    """Makes Cistern PyTorch's allocator for CUDA devices. Must come before the first CUDA allocation of the process.

    patch: let torch.cuda's own functions for figures and snapshots ask Cistern.
    out_of_memory: "cached" takes the part that build_out_of_memory() compiled earlier, if there is one; "build" compiles
    it when there is none; None leaves it out.

    An error leaves PyTorch as it was. Where Cistern is installed already, what is asked for now holds from now on, but
    that functions which were patched stay so.
    """
    global _installed
    if out_of_memory not in ("cached", "build", None):
        raise ValueError(f"cistern: out_of_memory={out_of_memory!r}: expected 'cached', 'build' or None")
    if out_of_memory == "build":
        handler = _build()
    elif out_of_memory == "cached":
        handler = _part() if os.path.exists(_out_of_memory_path()) else _handler
    else:
        handler = None
    function = _function_of(handler)
    if not _installed:
        torch.cuda.memory.change_current_allocator(plugin())
        _installed = True
    _use(handler, function)
    if patch:
        _patch()


# --- Figures and snapshots -------------------------------------------------------------------------------------------


def _index(device):
    return torch.cuda._utils._get_device_index(device, optional=True)


def memory_stats(device=None):
    """Cistern's own figures of a device, by name (bytes, counts)."""
    stats = _library.stats(_index(device))
    return {name: getattr(stats, name) for name, _ in stats._fields_ if name != "struct_size"}


def set_memory_limit(limit, device=None):
    """Returns the previous limit. Bytes."""
    return _library.set_limit("cistern_set_memory_limit", limit, _index(device))


def set_cache_limit(limit, device=None):
    """The same for memory that no tensor uses."""
    return _library.set_limit("cistern_set_cache_limit", limit, _index(device))


def stream_destroyed(stream, device=None):
    """Says that a stream is about to be destroyed by who made it: before the handle is gone, for every stream that
    allocated, freed or was recorded. PyTorch never destroys its own. `stream`: a torch.cuda.Stream or a handle."""
    if device is None:
        device = getattr(stream, "device_index", None)
    _library.stream_destroyed(getattr(stream, "cuda_stream", stream), _index(device))


def _snapshot(*_arguments):
    return snapshot.take(torch.cuda.device_count())


def _expect(value, name, *words):
    if value not in words:
        raise ValueError(f"cistern: {name}={value!r}: expected one of {', '.join(map(repr, words))}")


def _record_history(enabled="all", context=None, stacks="all", max_entries=None, *arguments, **named):
    _expect(enabled, "enabled", None, "state", "all")
    _expect(context, "context", None, "state", "alloc", "all")
    _expect(stacks, "stacks", "python", "all", None)
    capacity = _EVENTS if max_entries is None else _library.integer(max_entries, "max_entries")
    clear = arguments[0] if arguments else named.get("clear_history", False)
    # PyTorch takes 0 for 1; None is how it is told to stop.
    snapshot.record(min(max(capacity, 1), _MOST_EVENTS) if enabled == "all" else 0, clear)


def _record_history_legacy(enabled, *_arguments, **_named):
    if not isinstance(enabled, bool):
        raise TypeError(f"cistern: enabled={enabled!r}: expected True or False")
    snapshot.record(_EVENTS if enabled else 0)


def _fraction(index):
    stats = _library.stats(index)
    return stats.memory_limit / stats.total_memory


def _patch():
    global _patched
    if _patched:
        return
    _patched = True
    for name, function in {
            "_cuda_memoryStats": figures.nested,
            "_cuda_resetPeakMemoryStats": figures.reset_peaks,
            "_cuda_resetAccumulatedMemoryStats": figures.reset_accumulated,
            "_cuda_memorySnapshot": _snapshot,
            "_cuda_record_memory_history": _record_history,
            "_cuda_record_memory_history_legacy": _record_history_legacy,
            "_cuda_getMemoryFraction": _fraction,
    }.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)
    graph = torch.cuda.CUDAGraph
    graph.capture_begin, graph.capture_end = _watched_begin(graph.capture_begin), _watched_end(graph.capture_end)


# A capture that fails leaves its pool open: PyTorch says so to nobody. It is given up here, and it alone: the thread may
# have other pools open (torch.cuda.use_mem_pool, captures on other devices).


def _watched_begin(method):
    @functools.wraps(method)
    def capture_begin(self, *arguments, **named):
        library = _library.load()
        before = library.cistern_torch_newest_begin()
        try:
            result = method(self, *arguments, **named)
        except BaseException:
            if library.cistern_torch_newest_begin() != before:
                library.cistern_torch_abort_begin(library.cistern_torch_newest_begin())
            raise
        self._cistern_begin = library.cistern_torch_newest_begin()
        return result

    return capture_begin


def _watched_end(method):
    @functools.wraps(method)
    def capture_end(self, *arguments, **named):
        begin = self.__dict__.pop("_cistern_begin", 0)
        try:
            return method(self, *arguments, **named)
        except BaseException:
            if begin:
                _library.load().cistern_torch_abort_begin(begin)
            raise

    return capture_end


# --- Out of memory as PyTorch's own exception --------------------------------------------------------------------------

_SOURCE = r"""
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

extern "C" void cistern_throw_out_of_memory(const char* text) {
  throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text);
}
"""


def _out_of_memory_path():
    folder = os.environ.get("CISTERN_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "cistern")
    version = "".join(c if c.isalnum() else "_" for c in torch.__version__)
    return os.path.join(folder, f"out_of_memory_torch_{version}.so")


def _part():
    """The compiled part. Raises OSError that says what to do where the file is something else."""
    path = _out_of_memory_path()
    try:
        part = ctypes.CDLL(path)
        part.cistern_throw_out_of_memory
        return part
    except (OSError, AttributeError) as error:
        raise OSError(f"cistern: {path} is not what build_out_of_memory() compiles ({error}): call that, which makes it "
                      "anew, or remove the file") from error


def _function_of(handler):
    return None if handler is None else ctypes.cast(handler.cistern_throw_out_of_memory, ctypes.c_void_p)


def _use(handler, function):
    global _handler
    _handler = handler
    _library.load().cistern_torch_set_out_of_memory_handler(function)


def build_out_of_memory():
    """Compiles the part that throws PyTorch's out-of-memory exception, keeps it in the user's cache, and uses it. Needs a
    C++ compiler (named by $CXX, else c++)."""
    handler = _build()
    _use(handler, _function_of(handler))


def _build():
    import subprocess
    import tempfile

    from torch.utils import cpp_extension

    target = _out_of_memory_path()
    try:
        return _part()
    except OSError:  # Not there, or something else.
        pass
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as folder:
        source, made = os.path.join(folder, "out_of_memory.cpp"), os.path.join(folder, "out_of_memory.so")
        with open(source, "w", encoding="utf-8") as file:
            file.write(_SOURCE)
        libraries = os.path.join(os.path.dirname(torch.__file__), "lib")
        command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-fPIC", "-shared", source, "-o", made,
                   f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
                   *(f"-I{path}" for path in cpp_extension.include_paths()), f"-L{libraries}", "-lc10"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError("cistern: the part for torch.cuda.OutOfMemoryError does not compile:\n"
                               + " ".join(command) + "\n" + done.stderr)
        os.replace(made, target)
    return _part()
