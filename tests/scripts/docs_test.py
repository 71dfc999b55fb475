"""The link check passes on this tree and sees dead links, dead anchors and orphaned pages."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def check(root):
    script = ROOT / "scripts" / "check_docs.py"
    return subprocess.run([sys.executable, str(script), str(root)], capture_output=True, text=True, check=False)


class Docs(unittest.TestCase):
    def run_on(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return check(folder)

    def test_this_tree_is_in_order(self):
        result = check(ROOT)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_good_links(self):
        result = self.run_on({"README.md": "# Big title\n[a](docs/README.md#two-words) [b](#big-title)\n",
                              "docs/README.md": "## Two words\n[up](../README.md)\n"})
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_dead_link(self):
        self.assertIn("no such file", self.run_on({"README.md": "[a](gone.md)\n"}).stdout)
        self.assertIn("no such file", self.run_on({"README.md": '<img src="gone.svg">\n'}).stdout)

    def test_dead_anchor(self):
        self.assertIn("no such heading", self.run_on({"README.md": "# A\n[a](#b)\n"}).stdout)

    def test_orphan(self):
        result = self.run_on({"docs/README.md": "# Docs\n", "docs/lost.md": "# Lost\n"})
        self.assertIn("docs/lost.md:1: not linked", result.stdout)

    def test_code_is_no_link(self):
        self.assertEqual(self.run_on({"README.md": "```\n[a](gone.md)\n```\n`[b](gone.md)`\n"}).returncode, 0)


if __name__ == "__main__":
    unittest.main()
