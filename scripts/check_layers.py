"""Fails when an include goes up a layer, when core and drivers meet, or when a lower layer uses a system header.

The layers are those of src/README.md. Does not look at link order. Usage: check_layers.py [ROOT].
"""

import re
import sys

from tree import Report, project_files, root_from_arguments

# Folder -> rank. An include may go to the same rank or a lower one.
FOLDERS = {
    "src/core": 0,
    "src/drivers": 0,
    "src/allocator": 1,
    "src/pool": 2,
    "src/plan": 2,
    "src/trace": 3,
    "src/report": 3,
    "src/adapters": 4,
    "tools": 4,
    "bench": 4,
    "python": 4,
}
# Public headers -> rank of the layer that implements them.
PUBLIC = {
    "error": 0, "device": 0, "dtype": 0, "version": 0,
    "stream": 1, "buffer": 1, "allocator": 1, "memory": 1, "buffer_cache": 1, "interop": 1, "capture": 1,
    "shape": 2, "typed_buffer": 2, "buffer_pool": 2, "plan": 2, "planned_arena": 2, "planned_buffer": 2,
    "trace": 3,
    "c": 4, "c_arena": 4, "c_plan": 4, "c_trace": 4, "pmr": 4, "dlpack": 4, "torch": 4,
}
RANK_NAMES = ["core and drivers", "allocator", "pool and plan", "trace and report", "tools, bench, python and adapters"]
# core and drivers share a rank, but neither knows the other.
STRANGERS = {("src/core", "src/drivers"), ("src/drivers", "src/core")}
# Only drivers, tools and traces talk to the system; these folders use the C++ library alone.
PORTABLE = ("src/core", "src/pool", "src/plan", "include/cistern")
STANDARD = set("""
algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits clocale
cmath codecvt compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib
cstring ctime cuchar cwchar cwctype deque exception execution filesystem format forward_list fstream functional future
initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex new
numbers numeric optional ostream queue random ranges ratio regex scoped_allocator semaphore set shared_mutex
source_location span sstream stack stdexcept stop_token streambuf string string_view strstream syncstream system_error
thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility valarray variant vector version
stddef.h stdint.h stdbool.h emmintrin.h immintrin.h arm_acle.h
""".split())

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def folder_of(path):
    return next((f for f in FOLDERS if path == f or path.startswith(f + "/")), None)


def rank_of_target(root, source, kind, target):
    """(folder, rank) of an included file, or None when it is not of this project."""
    if target.startswith("cistern/"):
        stem = target.removeprefix("cistern/").rsplit(".", 1)[0]
        return "include/cistern", PUBLIC.get(stem)
    if kind == '"':
        for candidate in ("src/" + target, "tools/" + target, "bench/" + target):
            if (root / candidate).exists() and folder_of(candidate):
                return folder_of(candidate), FOLDERS[folder_of(candidate)]
        beside = (root / source).parent / target
        if beside.exists():
            name = beside.resolve().relative_to(root).as_posix()
            return folder_of(name), FOLDERS.get(folder_of(name))
    return None


def check_file(root, source, report):
    public = source.startswith("include/cistern/")
    folder = "include/cistern" if public else folder_of(source)
    if public:
        stem = source.removeprefix("include/cistern/").rsplit(".", 1)[0]
        rank = PUBLIC.get(stem)
        if rank is None:
            report.fail(source, 1, "public header without a layer; add it to PUBLIC in scripts/check_layers.py")
            return
    else:
        rank = FOLDERS[folder]
    for number, line in enumerate((root / source).read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        kind, target = match.groups()
        found = rank_of_target(root, source, kind, target)
        if found is None:
            if kind == '"' and folder != "python":
                report.fail(source, number, f'"{target}" is not in src/, tools/, bench/ or include/')
            elif kind == "<" and folder in PORTABLE and target not in STANDARD:
                report.fail(source, number, f"<{target}> is not a header of the C++ library; {folder} is portable")
            continue
        target_folder, target_rank = found
        if target_rank is None:
            report.fail(source, number, f'"{target}" has no layer')
        elif public and target_folder != "include/cistern":
            report.fail(source, number, f'public header includes internal "{target}"')
        elif target_rank > rank:
            report.fail(source, number,
                        f'include goes up: {RANK_NAMES[rank]} may not use "{target}" of {RANK_NAMES[target_rank]}')
        elif (folder, target_folder) in STRANGERS:
            report.fail(source, number, f"{folder} may not include {target_folder}")


def main():
    root = root_from_arguments()
    report = Report("layers")
    files = [str(f) for f in project_files(root) if f.suffix in (".hpp", ".cpp", ".h", ".mm")]
    checked = [f for f in files if f.startswith("include/cistern/") or folder_of(f)]
    for file in checked:
        check_file(root, file, report)
    for file in files:
        if file.startswith("src/") and not folder_of(file):
            report.fail(file, 1, "folder of src/ without a layer")
    return report.finish(len(checked))


if __name__ == "__main__":
    sys.exit(main())
