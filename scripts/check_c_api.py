"""Every public C++ function has its counterpart in C, or the page docs/c-interface.md says why not.

The page's tables have a row for each: names of C++ in the first column (overloads share one), functions of C in the
second, or "none: REASON". A name that no header declares, on either side, is an error, and so is a function of c*.h that
the page does not name. Reads headers as text: comments, bodies, private parts, operators and destructors are left out.
Does not compare arguments. Usage: check_c_api.py [ROOT].
"""

import re
import sys

from tree import Report, root_from_arguments

PAGE = "docs/c-interface.md"
NO_NAMES = {"alignas", "decltype", "noexcept", "requires", "explicit", "static_assert", "sizeof"}
NO_FUNCTIONS = re.compile(r"^\s*(?:using|typedef|friend|static_assert|return|extern)\b")
CLASS = re.compile(r"^(?:\s*(?:class|struct|union))\s+(?:alignas\s*\(\s*\w+\s*\)\s*)?(\w+)")


def strip(text):
    """Without comments, strings and preprocessor lines."""
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', re.sub(r"'(?:\\.|[^'\\\n])'", "' '", text))
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", " ", text, flags=re.M)


def balanced(text, start, opening, closing):
    """The place behind the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == opening) - (text[i] == closing)
        if depth == 0:
            return i + 1
    return len(text)


def simple(declaration):
    """A declaration without attributes, template arguments and constraints."""
    text = re.sub(r"\[\[.*?\]\]", " ", declaration, flags=re.S)
    text = re.sub(r"\boperator\s*\S+", " operator ", text)
    found = re.search(r"\brequires\s*\(", text)
    if found:
        text = text[:found.start()] + " " + text[balanced(text, found.end() - 1, "(", ")"):]
    before = None
    while before != text:
        before, text = text, re.sub(r"<[^<>]*>", " ", text)
    return re.sub(r"\btemplate\b", " ", text).strip()


def function_name(declaration):
    text = simple(declaration)
    if NO_FUNCTIONS.match(text) or re.search(r"\boperator\b|=\s*delete|~\s*\w+\s*\(", text):
        return None
    for found in re.finditer(r"\b(\w+)\s*\(", text):
        if found.group(1) not in NO_NAMES:
            return None if "=" in text[:found.start()] else found.group(1)
    return None


def functions_of(text, scope="", public=True):
    """Qualified names of what a stripped header (or the body of a class) declares for its users."""
    names, declaration, i = [], "", 0
    while i < len(text):
        at = text[i]
        if at == "{":
            end = balanced(text, i, "{", "}")
            inside = text[i + 1:end - 1]
            plain = simple(declaration)
            opened = CLASS.match(plain)
            if re.match(r"namespace\s+cistern$", plain):
                names += functions_of(inside)
            elif opened and public and "(" not in plain.replace("alignas", ""):
                names += functions_of(inside, scope + opened.group(1) + "::", not plain.startswith("class"))
            elif public and not plain.startswith(("namespace", "enum")) and function_name(declaration):
                names.append(scope + function_name(declaration))
            declaration, i = "", end
            continue
        if at == ";":
            if public and function_name(declaration):
                names.append(scope + function_name(declaration))
            declaration = ""
        elif at == ":" and declaration.strip() in ("public", "private", "protected"):
            public, declaration = declaration.strip() == "public", ""
        else:
            declaration += at
        i += 1
    return names


def rows_of(page):
    """(line, names of C++, text of the second column) for each row of the page's tables."""
    for number, line in enumerate(page.splitlines(), 1):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) == 4 and not re.match(r"-+$", cells[1]) and cells[1] != "C++":
            yield number, re.findall(r"`([^`]+)`", cells[1]), cells[2]


def main():
    root = root_from_arguments()
    report = Report("C interface")
    include = root / "include" / "cistern"
    headers = sorted(include.glob("*.hpp"))
    in_cpp, in_c = {}, {}
    for header in headers:
        for name in functions_of(strip(header.read_text())):
            in_cpp.setdefault(name, header.relative_to(root))
    for header in sorted(include.glob("c*.h")):
        text = strip(header.read_text())
        callbacks = set(re.findall(r"typedef[^;{]*\(\s*\*\s*(\w+)\s*\)", text))
        for name in re.findall(r"\b(cistern_\w+)\s*\(", text):
            if name not in callbacks:
                in_c.setdefault(name, header.relative_to(root))
    text = (root / PAGE).read_text()
    seen, named = {}, set()
    for number, names, second in rows_of(text):
        if not names and "cistern_" not in second:
            continue  # Another table.
        used = re.findall(r"\bcistern_\w+", second)
        named |= set(used)
        for name in used:
            if name not in in_c:
                report.fail(PAGE, number, f"{name} is in no header of C")
        if not used and not re.match(r"none: \w", second):
            report.fail(PAGE, number, 'expected functions of C, or "none: REASON"')
        for name in names:
            if name not in in_cpp:
                report.fail(PAGE, number, f"{name} is in no public header of C++")
            elif name in seen:
                report.fail(PAGE, number, f"{name} stands in line {seen[name]}, too")
            seen.setdefault(name, number)
    for name, header in in_cpp.items():
        if name not in seen:
            report.fail(header, 1, f"{name} has no row in {PAGE}")
    for name, header in in_c.items():
        if name not in named:
            report.fail(header, 1, f"{name} has no row in {PAGE}")
    return report.finish(len(headers))


if __name__ == "__main__":
    sys.exit(main())
