"""cistern.torch over modules that stand in for PyTorch and for the library: what a failed capture gives up. The stand-in
keeps PyTorch's order: a capture opens its pool, then begins; it ends, then closes the pool. And that the package's
version is the library's. Usage: torch_test.py.
"""

import os
import re
import sys
import types
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))
sys.dont_write_bytecode = True


class Library:
    """The pools that are open, by number of their begin."""

    def __init__(self):
        self.begins, self.open = 0, set()

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


fake = types.ModuleType("torch")
fake._C = types.SimpleNamespace()
fake.cuda = types.SimpleNamespace(CUDAGraph=CUDAGraph)
sys.modules["torch"] = fake

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
