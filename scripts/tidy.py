"""Runs clang-tidy over src/ and tools/, several files at a time, and skips a file that passed before unchanged.

"Unchanged" means: same file, same project headers under it, same .clang-tidy, same clang-tidy. What passed is kept in
$CISTERN_TIDY_CACHE (default: the user's cache folder). Does not fix anything.
Usage: tidy.py BUILD_FOLDER (one with compile_commands.json) [PATH_PREFIX...]
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

from tree import ROOT

INCLUDE = re.compile(rb'^\s*#\s*include\s*["<]([^">]+)[">]', re.M)
TIDY = os.environ.get("CLANG_TIDY", "clang-tidy")


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(os.environ.get("CISTERN_TIDY_CACHE") or pathlib.Path(base) / "cistern-tidy")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def headers_under(file, seen):
    """All project headers that `file` includes, directly or not."""
    for name in INCLUDE.findall(file.read_bytes()):
        for base in (ROOT / "include", ROOT / "src", ROOT / "tools", file.parent):
            header = base / name.decode()
            if header.is_file():
                if header not in seen:
                    seen.add(header)
                    headers_under(header, seen)
                break
    return seen


def digest(file, common):
    total = hashlib.sha256(common)
    for part in [file, *sorted(headers_under(file, set()))]:
        total.update(str(part.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(part.read_bytes()).digest())
    return total.hexdigest()


def main():
    build = pathlib.Path(sys.argv[1])
    prefixes = tuple(sys.argv[2:] or ["src/", "tools/"])
    commands = json.loads((build / "compile_commands.json").read_text())
    files = sorted({pathlib.Path(c["directory"], c["file"]).resolve() for c in commands})
    files = [f for f in files if f.is_relative_to(ROOT) and str(f.relative_to(ROOT)).startswith(prefixes)]
    version = subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout
    common = version + (ROOT / ".clang-tidy").read_bytes()
    cache = cache_folder()
    keys = {f: digest(f, common) for f in files}
    todo = [f for f in files if not (cache / keys[f]).exists()]

    def run(file):
        # Flags that only g++ knows may stand in the build's commands.
        return subprocess.run([TIDY, "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option",
                               "--extra-arg=-Wno-ignored-optimization-argument", str(file)],
                              capture_output=True, text=True, check=False)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, result in zip(todo, pool.map(run, todo)):
            if result.returncode == 0:
                (cache / keys[file]).touch()
            else:
                failed += 1
                print(result.stdout or result.stderr)
    print(f"tidy: {len(files)} files, {len(files) - len(todo)} passed before, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
