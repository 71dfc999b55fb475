"""House rules that a program can see: file length, opening comment, commented-out code, bare to-do marks, names of
places that mean nothing to a reader (paths of one machine, hosts of package registries).

Does not format (clang-format) and does not analyse (clang-tidy). Usage: check_source.py [ROOT].
"""

import re
import sys

from tree import Report, project_files, root_from_arguments

LIMIT = 500  # Lines of a source file.
NEAR = 450   # From here a warning.

CODE = {".cpp", ".hpp", ".h", ".mm", ".cc", ".c"}
SCRIPTS = {".py", ".sh", ".cmake", ".yml"}
WEB = {".js", ".css"}
DATA = {".csv", ".gz", ".json", ".pickle", ".svg", ".png", ".log"}

# A to-do is allowed only with the number of an issue: TODO(#12).
TODO = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
MACHINE = re.compile(r"(?<![\w.])/(work|home/\w+|root|tmp/build[\w-]*)/")
# Written in two parts, so that this file passes its own check.
HOSTS = re.compile("|".join(re.escape(a + b) for a, b in [
    ("pypi", ".org"), ("pythonhosted", ".org"), ("deb.debian", ".org"), ("archive.ubuntu", ".com"), ("npmjs", ".org"),
    ("crates", ".io"), ("conda.anaconda", ".org"), ("artifactory", ".")]))

# What a comment's text looks like when it is a statement: it starts like one and ends like one.
STATEMENT = re.compile(
    r"^(?:"
    r"#\s*(?:include|define|if|ifdef|ifndef|endif|pragma)\b.*"
    r"|(?:if|for|while|switch)\s*\(.*\)\s*(?:\{|.*;)"
    r"|(?:return|break|continue|throw|delete|using|namespace|template)\b[^.]*[;{]"
    r"|(?:[\w:<>*&]+\s+){0,3}[\w:.\[\]>-]+\s*[-+*/|&]?=\s*[^=].*;"
    r"|[\w:.]+(?:->[\w.]+)*\([^)]*\);"
    r"|\}\s*(?:else.*)?"
    r")$")


def opens_with_comment(lines, suffix, name):
    body = list(lines)
    if body and body[0].startswith("#!"):
        body.pop(0)
    first = next((line.strip() for line in body if line.strip()), "")
    if suffix in CODE or suffix == ".js":
        return first.startswith(("//", "/*"))
    if suffix == ".css":
        return first.startswith("/*")
    if suffix == ".py":
        return first.startswith(('"""', "#", "'''"))
    return first.startswith("#")


def check_file(root, path, report):
    suffix = path.suffix if path.name != "CMakeLists.txt" else ".cmake"
    try:
        text = (root / path).read_text()
    except UnicodeDecodeError:
        return False
    lines = text.splitlines()
    source = suffix in CODE | SCRIPTS | WEB or path.parts[0] == ".ci"
    if source:
        if len(lines) > LIMIT:
            report.fail(path, LIMIT + 1, f"{len(lines)} lines; split by purpose (limit {LIMIT})")
        elif len(lines) >= NEAR:
            report.warn(path, len(lines), f"{len(lines)} lines, near the limit of {LIMIT}")
        if not opens_with_comment(lines, suffix, path.name):
            report.fail(path, 1, "does not open with a comment that says what the file does")
    for number, line in enumerate(lines, 1):
        if source and TODO.search(line) and path.name != "check_source.py":
            report.fail(path, number, "to-do mark without the number of an issue")
        if MACHINE.search(line):
            report.fail(path, number, "path of one machine")
        if HOSTS.search(line):
            report.fail(path, number, "host of a package registry")
        if suffix in CODE:
            stripped = line.strip()
            if stripped.startswith("//") and STATEMENT.match(stripped.lstrip("/!< ").strip()):
                report.fail(path, number, "commented-out code")
    if text and not text.endswith("\n"):
        report.fail(path, len(lines), "no newline at the end")
    return True


def main():
    root = root_from_arguments()
    report = Report("source")
    checked = 0
    for path in project_files(root):
        if path.suffix in DATA or path.name == "LICENSE":
            continue
        checked += check_file(root, path, report)
    return report.finish(checked)


if __name__ == "__main__":
    sys.exit(main())
