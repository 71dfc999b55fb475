"""The C++ examples of Markdown pages compile. Each fenced `cpp` block is one program: its includes go to the top, the rest
into main(). Compiles only, links nothing. The compiler is $CXX (default c++). Usage: check_readme.py [ROOT].
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

from tree import Report, root_from_arguments

BLOCK = re.compile(r"^```cpp\n(.*?)^```", re.M | re.S)
PAGES = ["README.md", "docs/README.md"]


def main():
    root = root_from_arguments()
    report = Report("examples in pages")
    checked = 0
    for page in PAGES:
        text = (root / page).read_text()
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 2
            lines = block.group(1).splitlines()
            includes = [part for part in lines if part.startswith("#include")]
            body = [part for part in lines if not part.startswith("#include")]
            with tempfile.TemporaryDirectory() as folder:
                source = pathlib.Path(folder) / "example.cpp"
                source.write_text("\n".join([*includes, "int main() {", *body, "}", ""]))
                result = subprocess.run([*os.environ.get("CXX", "c++").split(), "-std=c++20", "-Wall", "-Wextra", "-Werror",
                                         f"-I{root}/include", "-fsyntax-only", str(source)],
                                        capture_output=True, text=True, check=False)
            checked += 1
            if result.returncode != 0:
                report.fail(page, line, f"example does not compile:\n{result.stderr}")
    return report.finish(checked)


if __name__ == "__main__":
    sys.exit(main())
