"""Links of the Markdown files resolve: files exist, headings exist, and every page of docs/ can be reached from
docs/README.md. Links to other hosts are not followed. Usage: check_docs.py [ROOT].
"""

import posixpath
import re
import sys

from tree import Report, project_files, root_from_arguments

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
IMAGE = re.compile(r"<(?:img|source)[^>]*\b(?:src|srcset)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
FENCE = re.compile(r"^\s*(```|~~~)")


def prose_lines(text):
    """(number, line) outside fenced code, inline code removed."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(text):
    """Anchors that a page's headings get, as the usual renderers make them."""
    found = set()
    for _, line in prose_lines(text):
        match = HEADING.match(line)
        if match:
            title = re.sub(r"[`*_]|\[([^\]]*)\]\([^)]*\)", r"\1", match.group(1)).lower()
            base = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            name, count = base, 0
            while name in found:
                count += 1
                name = f"{base}-{count}"
            found.add(name)
    return found


def main():
    root = root_from_arguments()
    report = Report("docs")
    pages = {str(f): (root / f).read_text() for f in project_files(root) if f.suffix == ".md"}
    reached = {}
    for page, text in pages.items():
        for number, line in prose_lines(text):
            for target in LINK.findall(re.sub(r"`[^`]*`", "", line)) + IMAGE.findall(line):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                file = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
                if not (root / file).exists():
                    report.fail(page, number, f"link to {target}: no such file")
                elif anchor and file in pages and anchor not in anchors(pages[file]):
                    report.fail(page, number, f"link to {target}: no such heading")
                else:
                    reached.setdefault(page, set()).add(file)
    index = "docs/README.md"
    for page in pages:
        if page.startswith("docs/") and page != index and page not in reached.get(index, set()):
            report.fail(page, 1, f"not linked from {index}")
    return report.finish(len(pages))


if __name__ == "__main__":
    sys.exit(main())
