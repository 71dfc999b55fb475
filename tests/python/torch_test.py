"""cistern.torch over modules that stand in for PyTorch and for the library: what a failed capture gives up, what install()
leaves behind, which arguments are refused. The stand-in keeps PyTorch's order: a capture opens its pool, then begins; it
ends, then closes the pool. And that the package's version is the library's. Usage: torch_test.py.
"""

import ctypes
import os
import re
import sys
import tempfile
import types
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))
sys.dont_write_bytecode = True


class Library:
    """The pools that are open, by number of their begin."""

    def __init__(self):
        self.begins, self.open = 0, set()
        self.handler, self.calls = None, []

    def begin(self):
        self.begins += 1
        self.open.add(self.begins)
        return self.begins

    def cistern_torch_newest_begin(self):
        return self.begins

    def cistern_torch_abort_begin(self, number):
        if number not in self.open:
            return 0
        self.open.remove(number)
        return 1

    def cistern_torch_set_out_of_memory_handler(self, function):
        self.handler = function.value if function else None

    def cistern_set_memory_limit(self, device, limit, previous):
        self.calls.append(("memory", device.index, limit))
        return 0

    def cistern_set_cache_limit(self, device, limit, previous):
        self.calls.append(("cache", device.index, limit))
        return 0

    def cistern_torch_record_history(self, capacity, clear):
        self.calls.append(("history", capacity, clear))
        return 0

    def cistern_torch_stream_destroyed(self, device, stream):
        self.calls.append(("stream", device, stream))
        return 0


library = Library()


class CUDAGraph:
    """PyTorch's, as far as its pool goes. `fail` names the step that fails next."""

    fail = None

    def step(self, name):
        if CUDAGraph.fail == name:
            CUDAGraph.fail = None
            raise RuntimeError(name)

    def capture_begin(self, pool=None, capture_error_mode="global"):
        """Begins."""
        self.step("before the pool")
        self.number = library.begin()
        self.step("begin")
        return pool

    def capture_end(self):
        self.step("end")
        library.open.remove(self.number)
        self.step("instantiate")


class Pluggable:
    def __init__(self, path, alloc, free):
        pass

    def allocator(self):
        return None


changed = []  # Allocators that PyTorch was given.
fake = types.ModuleType("torch")
fake.__version__, fake.__file__ = "2.0", __file__
fake._C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True)
fake.cuda = types.SimpleNamespace(
    CUDAGraph=CUDAGraph, _utils=types.SimpleNamespace(_get_device_index=lambda device, optional: device or 0),
    memory=types.SimpleNamespace(CUDAPluggableAllocator=Pluggable, change_current_allocator=changed.append))
sys.modules["torch"] = fake
sys.modules["torch.utils"] = types.ModuleType("torch.utils")
sys.modules["torch.utils"].cpp_extension = types.SimpleNamespace(include_paths=lambda: [])

from cistern import _library  # noqa: E402
import cistern.torch  # noqa: E402

_library.load = lambda: library
cistern.torch._patch()


class FailedCapture(unittest.TestCase):
    def setUp(self):
        library.open.clear()
        self.other = library.begin()  # torch.cuda.use_mem_pool(), say.

    def failing(self, step, call, *arguments):
        CUDAGraph.fail = step
        with self.assertRaisesRegex(RuntimeError, step):
            call(*arguments)

    def test_a_capture_that_works_keeps_everything(self):
        graph = CUDAGraph()
        self.assertEqual(graph.capture_begin("pool", capture_error_mode="relaxed"), "pool")
        self.assertEqual(library.open, {self.other, graph.number})
        graph.capture_end()
        self.assertEqual(library.open, {self.other})
        self.assertEqual((CUDAGraph.capture_begin.__name__, CUDAGraph.capture_begin.__doc__), ("capture_begin", "Begins."))

    def test_a_failed_begin_gives_up_its_own_pool(self):
        self.failing("begin", CUDAGraph().capture_begin)
        self.assertEqual(library.open, {self.other})

    def test_a_begin_that_opened_nothing_gives_up_nothing(self):
        self.failing("before the pool", CUDAGraph().capture_begin)
        self.assertEqual(library.open, {self.other})

    def test_a_failed_end_gives_up_its_own_pool(self):
        graph, outer = CUDAGraph(), CUDAGraph()
        outer.capture_begin()
        graph.capture_begin()
        later = library.begin()
        self.failing("end", graph.capture_end)
        self.assertEqual(library.open, {self.other, outer.number, later})
        outer.capture_end()
        self.assertEqual(library.open, {self.other, later})

    def test_an_end_that_closed_its_pool_gives_up_nothing(self):
        graph = CUDAGraph()
        graph.capture_begin()
        self.failing("instantiate", graph.capture_end)
        self.assertEqual(library.open, {self.other})

    def test_an_end_without_a_begin_gives_up_nothing(self):
        self.failing("end", CUDAGraph().capture_end)
        self.assertEqual(library.open, {self.other})


class Install(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.environ.update, CISTERN_CACHE=os.environ.get("CISTERN_CACHE", ""))
        os.environ["CISTERN_CACHE"] = folder.name
        cistern.torch._installed, cistern.torch._handler, library.handler = False, None, None
        changed.clear()

    def compiled(self):
        """Stands for the compiled part; and where its function is."""
        function = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda text: None)
        return types.SimpleNamespace(cistern_throw_out_of_memory=function), ctypes.cast(function, ctypes.c_void_p).value

    def test_an_error_comes_before_the_allocator_is_changed(self):
        with self.assertRaisesRegex(ValueError, "'rubbish': expected 'cached', 'build' or None"):
            cistern.torch.install(out_of_memory="rubbish")
        self.addCleanup(os.environ.pop, "CXX", None)
        os.environ["CXX"] = "false"
        with self.assertRaisesRegex(RuntimeError, "does not compile"):
            cistern.torch.install(out_of_memory="build")
        with open(cistern.torch._out_of_memory_path(), "w", encoding="utf-8") as file:
            file.write("no library")
        with self.assertRaisesRegex(OSError, "is not what build_out_of_memory.. compiles .*: call that"):
            cistern.torch.install()
        with self.assertRaisesRegex(RuntimeError, "does not compile"):  # It is made anew.
            cistern.torch.install(out_of_memory="build")
        self.assertEqual((cistern.torch.installed(), changed, library.handler), (False, [], None))
        cistern.torch.install(out_of_memory=None)
        self.assertEqual((cistern.torch.installed(), len(changed)), (True, 1))

    def test_a_later_call_takes_effect(self):
        cistern.torch.install(out_of_memory=None)
        self.assertIsNone(library.handler)
        part, where = self.compiled()
        self.addCleanup(setattr, cistern.torch, "_build", cistern.torch._build)
        cistern.torch._build = lambda: part
        cistern.torch.install(out_of_memory="build")
        self.assertEqual(library.handler, where)
        cistern.torch.install()  # Keeps what there is.
        self.assertEqual(library.handler, where)
        with self.assertRaises(ValueError):
            cistern.torch.install(out_of_memory=True)
        self.assertEqual(library.handler, where)
        cistern.torch.install(out_of_memory=None)
        self.assertIsNone(library.handler)
        self.assertEqual(len(changed), 1)


class Arguments(unittest.TestCase):
    def setUp(self):
        library.calls.clear()

    def test_limits(self):
        for set_limit in (cistern.torch.set_memory_limit, cistern.torch.set_cache_limit):
            for limit in (-1, -5, 2**64, 2**70):
                with self.assertRaisesRegex(ValueError, f"limit in bytes {limit}: expected 0 to 18446744073709551615"):
                    set_limit(limit)
            for limit in (1.5, "x", None, True):
                with self.assertRaisesRegex(TypeError, f"limit in bytes {limit!r}: expected a whole number"):
                    set_limit(limit)
        for device in (-1, 64, 2**32):
            with self.assertRaisesRegex(ValueError, f"device {device}: expected 0 to 63"):
                cistern.torch.set_memory_limit(1, device)
        self.assertEqual(library.calls, [])
        cistern.torch.set_memory_limit(2**64 - 1)
        cistern.torch.set_cache_limit(0, 63)
        self.assertEqual(library.calls, [("memory", 0, 2**64 - 1), ("cache", 63, 0)])

    def test_the_history(self):
        record = fake._C._cuda_record_memory_history = cistern.torch._record_history
        for bad in (("rubbish",), ("all", "rubbish"), ("all", None, "rubbish"), ("all", None, "all", -5),
                    ("all", None, "all", 2**64), (True,)):
            with self.assertRaisesRegex(ValueError, "expected"):
                record(*bad)
        with self.assertRaises(TypeError):
            record("all", max_entries=1.5)
        with self.assertRaises(TypeError):
            cistern.torch._record_history_legacy("rubbish")
        self.assertEqual(library.calls, [])
        record("all", "all", "all", sys.maxsize, True)
        record("all", max_entries=5)
        record("all", max_entries=0)
        record()
        record("state")
        record(None)
        cistern.torch._record_history_legacy(True)
        self.assertEqual([call[1:] for call in library.calls], [
            (10_000_000, 1), (5, 0), (1, 0), (1_000_000, 0), (0, 0), (0, 0), (1_000_000, 1)])

    def test_a_destroyed_stream(self):
        cistern.torch.stream_destroyed(types.SimpleNamespace(cuda_stream=0x1000, device_index=3))
        cistern.torch.stream_destroyed(0x2000)
        cistern.torch.stream_destroyed(0x3000, 2)
        self.assertEqual(library.calls, [("stream", 3, 0x1000), ("stream", 0, 0x2000), ("stream", 2, 0x3000)])
        for bad in (-1, 2**64):
            with self.assertRaises(ValueError):
                cistern.torch.stream_destroyed(bad)
        with self.assertRaises(TypeError):
            cistern.torch.stream_destroyed(None)


class Package(unittest.TestCase):
    def version(self, file, pattern):
        with open(os.path.join(ROOT, *file.split("/")), encoding="utf-8") as text:
            return re.search(pattern, text.read(), re.M).group(1)

    def test_the_version_is_the_librarys(self):
        expected = self.version("include/cistern/version.hpp", r'kVersion\[\] = "([^"]+)"')
        self.assertEqual(cistern.__version__, expected)
        self.assertEqual(self.version("python/pyproject.toml", r'^version = "([^"]+)"'), expected)


if __name__ == "__main__":
    unittest.main()
