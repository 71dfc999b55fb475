"""Each public header compiles alone, twice in one file, and reaches neither an internal nor a vendor's header.

`*.h` are compiled as C11 as well. The compiler is $CXX (default c++), for C $CC (default cc).
Usage: check_headers.py [ROOT].
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from tree import Report, root_from_arguments

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
VENDOR = re.compile(r"/(cuda\w*|cudart\w*|nvml|nccl|hip|Metal|Foundation|objc|torch|mlx|fmt|nlohmann|CLI|zlib\.h)\b")


def compile_alone(root, header, language):
    """Text of the fault, or None."""
    name = f"cistern/{header.name}"
    compiler = os.environ.get("CXX", "c++") if language == "c++" else os.environ.get("CC", "cc")
    standard = "-std=c++20" if language == "c++" else "-std=c11"
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / ("alone.cpp" if language == "c++" else "alone.c")
        source.write_text(f"#include <{name}>\n#include <{name}>\nint used;\n")
        command = [*compiler.split(), standard, *WARNINGS, f"-I{root}/include"]
        compiled = subprocess.run([*command, "-fsyntax-only", str(source)], capture_output=True, text=True, check=False)
        if compiled.returncode != 0:
            return f"does not compile alone as {language}:\n{compiled.stderr}"
        reached = subprocess.run([*command, "-M", str(source)], capture_output=True, text=True, check=True).stdout
    for path in reached.replace("\\\n", " ").split()[2:]:
        if path.startswith(f"{root}/") and not path.startswith(f"{root}/include/cistern/"):
            return f"reaches internal header {path}"
        if not path.startswith(f"{root}/") and VENDOR.search(path):
            return f"reaches vendor header {path}"
    return None


def main():
    root = root_from_arguments()
    report = Report("headers")
    headers = sorted((root / "include" / "cistern").glob("*.h*"))
    jobs = [(h, "c++") for h in headers] + [(h, "c") for h in headers if h.suffix == ".h"]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (header, _), fault in zip(jobs, pool.map(lambda job: compile_alone(root, *job), jobs)):
            if fault:
                report.fail(header.relative_to(root), 1, fault)
    return report.finish(len(headers))


if __name__ == "__main__":
    sys.exit(main())
