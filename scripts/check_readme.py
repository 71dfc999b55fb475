"""The examples of Markdown pages compile. Each fenced `cpp` block is one program: its includes go to the top, the rest
into main(). A `c` block is a whole file. Compiles only, links nothing. The compiler is $CXX (default c++), for C $CC
(default cc). Usage: check_readme.py [ROOT].
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

from tree import Report, root_from_arguments

BLOCK = re.compile(r"^```(cpp|c)\n(.*?)^```", re.M | re.S)
PAGES = ["README.md", "docs/README.md", "docs/c-interface.md"]


def main():
    root = root_from_arguments()
    report = Report("examples in pages")
    checked = 0
    for page in PAGES:
        text = (root / page).read_text()
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 2
            language, lines = block.group(1), block.group(2).splitlines()
            if language == "cpp":
                includes = [part for part in lines if part.startswith("#include")]
                body = [part for part in lines if not part.startswith("#include")]
                lines = [*includes, "int main() {", *body, "}"]
            compiler = [*os.environ.get("CXX", "c++").split(), "-std=c++20"]
            if language == "c":
                compiler = [*os.environ.get("CC", "cc").split(), "-std=c99"]
            with tempfile.TemporaryDirectory() as folder:
                source = pathlib.Path(folder) / f"example.{language}"
                source.write_text("\n".join([*lines, ""]))
                result = subprocess.run([*compiler, "-Wall", "-Wextra", "-Werror", f"-I{root}/include", "-fsyntax-only",
                                         str(source)], capture_output=True, text=True, check=False)
            checked += 1
            if result.returncode != 0:
                report.fail(page, line, f"example does not compile:\n{result.stderr}")
    return report.finish(checked)


if __name__ == "__main__":
    sys.exit(main())
