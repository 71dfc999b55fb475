"""The layer check passes on this tree and fails on small trees that break one rule each."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def check(root):
    script = ROOT / "scripts" / "check_layers.py"
    return subprocess.run([sys.executable, str(script), str(root)], capture_output=True, text=True, check=False)


class Layers(unittest.TestCase):
    def tree(self, files):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name, text in files.items():
            path = pathlib.Path(folder.name) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder.name

    def expect_failure(self, files, text):
        result = check(self.tree(files))
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn(text, result.stdout)

    def test_this_tree_is_in_order(self):
        result = check(ROOT)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_down_is_allowed(self):
        result = check(self.tree({
            "src/core/a.hpp": "#include <vector>\n#include \"cistern/error.hpp\"\n",
            "src/pool/b.cpp": '#include "core/a.hpp"\n#include "cistern/allocator.hpp"\n',
            "include/cistern/error.hpp": "",
            "include/cistern/allocator.hpp": '#include "cistern/error.hpp"\n',
        }))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_up_fails(self):
        self.expect_failure({"src/core/a.cpp": '#include "pool/b.hpp"\n', "src/pool/b.hpp": ""},
                            "src/core/a.cpp:1: include goes up")

    def test_up_through_a_public_header_fails(self):
        self.expect_failure({"src/core/a.cpp": '\n#include "cistern/memory.hpp"\n', "include/cistern/memory.hpp": ""},
                            "src/core/a.cpp:2: include goes up")

    def test_up_between_public_headers_fails(self):
        self.expect_failure({"include/cistern/buffer.hpp": '#include "cistern/plan.hpp"\n',
                             "include/cistern/plan.hpp": ""}, "include goes up")

    def test_core_and_drivers_are_strangers(self):
        self.expect_failure({"src/core/a.cpp": '#include "drivers/driver.hpp"\n', "src/drivers/driver.hpp": ""},
                            "src/core may not include src/drivers")
        self.expect_failure({"src/drivers/a.cpp": '#include "core/units.hpp"\n', "src/core/units.hpp": ""},
                            "src/drivers may not include src/core")

    def test_public_header_with_internal_include_fails(self):
        self.expect_failure({"include/cistern/error.hpp": '#include "core/units.hpp"\n', "src/core/units.hpp": ""},
                            "public header includes internal")

    def test_system_header_in_core_fails(self):
        self.expect_failure({"src/core/a.cpp": "#include <sys/mman.h>\n"}, "is not a header of the C++ library")

    def test_include_by_relative_path_is_seen(self):
        self.expect_failure({"src/core/a.cpp": '#include "../pool/b.hpp"\n', "src/pool/b.hpp": ""}, "include goes up")

    def test_public_header_needs_a_layer(self):
        self.expect_failure({"include/cistern/surprise.hpp": ""}, "public header without a layer")

    def test_folder_needs_a_layer(self):
        self.expect_failure({"src/misc/a.cpp": ""}, "folder of src/ without a layer")


if __name__ == "__main__":
    unittest.main()
