"""The check of the C interface passes on this tree and fails on small trees where a side is missing."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

CPP = """// run(hidden) { is a comment.
#define MACRO(x) x
namespace cistern {
namespace detail { void inner(); }
enum class Kind { one };
class Thing {
 public:
  explicit Thing(int n = size_of("{")) : n_{n} {}
  ~Thing();
  Thing(const Thing&) = delete;
  template <typename T>
  requires(sizeof(T) > 1) std::vector<T> take(std::function<bool(T)> f) const { return f(1); }
  friend bool operator==(const Thing&, const Thing&);
  std::function<bool(int)> field;
  int other = compute(1);
 private:
  void secret();
  int n_;
};
[[nodiscard]] int run();
}  // namespace cistern
"""
C = """/* cistern_gone(void) was here. */
typedef int (*cistern_callback)(void* context);
int cistern_run(cistern_callback f);
int cistern_thing_take(void);
int cistern_version(void);
"""
PAGE = """| C++ | C |
| --- | --- |
| `run` | `cistern_run` |
| `Thing::Thing` | none: it has no state |
| `Thing::take` | `cistern_thing_take` |
| | `cistern_version` |
"""


class CApi(unittest.TestCase):
    def check(self, root):
        script = ROOT / "scripts" / "check_c_api.py"
        return subprocess.run([sys.executable, str(script), str(root)], capture_output=True, text=True, check=False)

    def tree(self, cpp=CPP, c=C, page=PAGE):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name, text in {"include/cistern/thing.hpp": cpp, "include/cistern/c.h": c, "docs/c-interface.md": page}.items():
            path = pathlib.Path(folder.name) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return self.check(folder.name)

    def expect_failures(self, count, text, **tree):
        result = self.tree(**tree)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn(text, result.stdout)
        self.assertIn(f"{count} failures", result.stdout)

    def test_this_tree_is_in_order(self):
        result = self.check(ROOT)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_a_small_tree_is_in_order(self):
        result = self.tree()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_a_new_function_of_cpp_fails(self):
        self.expect_failures(1, "thing.hpp:1: walk has no row", cpp=CPP.replace("int run();", "int run(); void walk(int);"))

    def test_a_new_member_fails(self):
        self.expect_failures(1, "thing.hpp:1: Thing::give has no row",
                             cpp=CPP.replace("  ~Thing();", "  void give() const {}"))

    def test_a_new_function_of_c_fails(self):
        self.expect_failures(1, "c.h:1: cistern_walk has no row", c=C + "void cistern_walk(void);\n")

    def test_rows_of_what_is_gone_fail(self):
        self.expect_failures(1, "c-interface.md:3: run is in no public header", cpp=CPP.replace("int run();", ""))
        self.expect_failures(1, "c-interface.md:3: cistern_run is in no header",
                             c=C.replace("int cistern_run(cistern_callback f);", ""))

    def test_an_absence_needs_a_reason(self):
        self.expect_failures(1, "c-interface.md:4: expected functions of C", page=PAGE.replace("none: it has no state", ""))

    def test_two_rows_for_one_function_fail(self):
        self.expect_failures(1, "run stands in line 3, too", page=PAGE + "| `run` | `cistern_run` |\n")


if __name__ == "__main__":
    unittest.main()
