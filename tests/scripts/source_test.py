"""The source check passes on this tree and sees each fault it is made for; harmless comments stay unflagged."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def check(root):
    script = ROOT / "scripts" / "check_source.py"
    return subprocess.run([sys.executable, str(script), str(root)], capture_output=True, text=True, check=False)


class Source(unittest.TestCase):
    def run_on(self, text, name="src/core/a.cpp"):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True)
            path.write_text(text)
            return check(folder)

    def expect(self, text, fault, name="src/core/a.cpp"):
        result = self.run_on(text, name)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn(fault, result.stdout)

    def test_this_tree_is_in_order(self):
        result = check(ROOT)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_long_file(self):
        self.expect("// Long.\n" * 501, "501 lines")
        result = self.run_on("// Near.\n" * 460)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("near the limit", result.stdout)

    def test_opening_comment(self):
        self.expect("#include <vector>\n", "does not open with a comment")
        self.expect("import os\n", "does not open with a comment", "scripts/a.py")

    def test_commented_out_code(self):
        for line in ["int x = 3;", "x += 3;", "free(b);", "if (x) return;", "return x;", "for (;;) {", "}", "#include <a>",
                     "heap->free(b);", "std::size_t n = 1;", "#if 0"]:
            self.expect(f"// Opens.\n// {line}\n", ":2: commented-out code")

    def test_prose_is_no_code(self):
        for line in ["The block is free; its bytes are not.", "If it fails, the caller tries again.", "pre: n > 0;",
                     "return value in bytes", "See free().", "a = start of the run, b = its end",
                     "for small blocks: one step", "while (in the dark) it waits"]:
            result = self.run_on(f"// Opens.\n// {line}\n")
            self.assertEqual(result.returncode, 0, result.stdout)

    def test_to_do_marks(self):
        self.expect("// Opens.\n// TO" + "DO: later\n", "to-do mark")
        self.assertEqual(self.run_on("// Opens.\n// TO" + "DO(#12): later\n").returncode, 0)

    def test_places(self):
        self.expect("// Opens.\n// see /ho" + "me/anna/notes\n", "path of one machine")
        self.expect("// Opens.\n// from py" + "pi.org\n", "host of a package registry")


if __name__ == "__main__":
    unittest.main()
