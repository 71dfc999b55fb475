"""cistern.cupy over modules that stand in for CuPy and for the library: a stream is told of before it is destroyed, and
numbers that C would change are refused. Usage: cupy_test.py.
"""

import gc
import os
import sys
import types
import unittest
import unittest.mock
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))
sys.dont_write_bytecode = True

happened = []


class Library:
    """Hands out one address after another."""

    address = 0x10000

    def cistern_torch_try_alloc(self, size, device, stream):
        self.address += 512
        happened.append(("alloc", size, device, stream))
        return self.address

    def cistern_torch_free(self, ptr, size, device, stream):
        happened.append(("free", ptr, size, device, stream))

    def cistern_torch_stream_destroyed(self, device, stream):
        happened.append(("told", device, stream))
        return 0


class Stream:
    """CuPy's: destroys what it made, unless the process is ending."""

    def __init__(self, ptr, device_id=1):
        self.ptr, self.device_id, self._foreign_stream_ref = ptr, device_id, None

    def __del__(self, is_shutting_down=lambda: False):
        """Destroys."""
        if not is_shutting_down() and self.ptr > 2 and self._foreign_stream_ref is None:
            happened.append(("destroyed", self.ptr))


class PythonFunctionAllocator:
    def __init__(self, malloc, free):
        self.malloc, self.free = malloc, free


fake = types.ModuleType("cupy")
fake.cuda = types.SimpleNamespace(
    Stream=Stream, PythonFunctionAllocator=PythonFunctionAllocator, set_allocator=lambda malloc: None,
    get_current_stream=lambda: types.SimpleNamespace(ptr=0x77), Device=lambda: types.SimpleNamespace(id=4))
sys.modules["cupy"] = fake

from cistern import _library  # noqa: E402
import cistern.cupy  # noqa: E402

library = Library()
_library.load = lambda: library
cistern.cupy.install()
cistern.cupy.install()


class CuPy(unittest.TestCase):
    def setUp(self):
        happened.clear()

    def test_a_collected_stream_is_told_of_once_and_first(self):
        stream = Stream(0x1000)
        del stream
        gc.collect()
        self.assertEqual(happened, [("told", 1, 0x1000), ("destroyed", 0x1000)])

    def test_one_in_a_cycle(self):
        stream = Stream(0x2000, -1)
        stream.itself = stream
        del stream
        gc.collect()
        self.assertEqual(happened, [("told", 4, 0x2000), ("destroyed", 0x2000)])

    def test_streams_that_nobody_owns_are_not(self):
        for name in (0, 1, 2):
            Stream(name)
        gc.collect()
        self.assertEqual(happened, [])

    def test_one_that_cupy_was_lent_is_not(self):
        stream = Stream(0x2800)
        stream._foreign_stream_ref = self
        del stream
        gc.collect()
        self.assertEqual(happened, [])

    def test_a_failure_to_tell_leaves_the_stream_destroyed(self):
        seen = []
        self.addCleanup(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = lambda hook: seen.append(hook.exc_type)
        Stream(0x3000, 64)
        gc.collect()
        self.assertEqual((happened, seen), ([("destroyed", 0x3000)], [ValueError]))

    def test_one_that_cupy_did_not_make(self):
        cistern.cupy.stream_destroyed(0x4000)
        cistern.cupy.stream_destroyed(types.SimpleNamespace(ptr=0x5000, device_id=-1))
        cistern.cupy.stream_destroyed(types.SimpleNamespace(ptr=0x6000, device_id=2))
        cistern.cupy.stream_destroyed(0x7000, 3)
        self.assertEqual(happened, [("told", 4, 0x4000), ("told", 4, 0x5000), ("told", 2, 0x6000), ("told", 3, 0x7000)])
        with self.assertRaises(ValueError):
            cistern.cupy.stream_destroyed(-1)

    def test_a_class_that_cannot_be_watched_is_told_of(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cistern.cupy._watch(int)
        self.assertIn("stream_destroyed", str(caught[0].message))

    def test_memory(self):
        allocator = cistern.cupy.allocator()
        for size in (-1, 2**63, 2**64 + 100):
            with self.assertRaisesRegex(ValueError, f"size in bytes {size}: expected"):
                allocator.malloc(size, 0)
        with self.assertRaisesRegex(ValueError, "device 64: expected"):
            allocator.malloc(1, 64)
        with self.assertRaises(TypeError):
            allocator.malloc(1.5, 0)
        self.assertEqual(happened, [])
        pointer = allocator.malloc(100, 1)
        for device in (0, 64, -1, "1"):
            with self.assertRaisesRegex(ValueError, f"free of {pointer:#x}: device {device!r}: expected 1"):
                allocator.free(pointer, device)
        allocator.free(pointer, 1)
        self.assertEqual(happened, [("alloc", 100, 1, 0x77), ("free", pointer, 100, 1, 0x77)])
        with self.assertRaisesRegex(ValueError, f"free of {pointer:#x}: no live memory"):
            allocator.free(pointer, 1)
        allocator.free(0, 1)

    def test_what_cannot_be_had(self):
        allocator = cistern.cupy.allocator()
        for there, error in ((True, MemoryError), (False, ValueError)):
            with unittest.mock.patch.multiple(Library, create=True,
                                              cistern_torch_try_alloc=lambda *_: None,
                                              cistern_last_error=lambda _: b"cistern: why",
                                              cistern_device_available=lambda *_, there=there: there):
                with self.assertRaisesRegex(error, "cistern: why"):
                    allocator.malloc(100, 9)


if __name__ == "__main__":
    unittest.main()
