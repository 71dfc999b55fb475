"""Which files belong to the project, and the failure list that all checks share.

Does no checking itself. Used by the scripts/check_*.py of this folder. No state beyond the Report object.
"""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED_FOLDERS = {".git", "build", "third_party", "__pycache__", ".venv", ".cache"}


def project_files(root):
    """All files that git knows or would add; without git, all files outside build folders. Sorted, relative to root."""
    listing = subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"],
                             capture_output=True, check=False)
    if listing.returncode == 0 and (root / ".git").exists():
        names = [pathlib.PurePosixPath(n) for n in listing.stdout.decode().split("\0") if n]
    else:
        names = [pathlib.PurePosixPath(p.relative_to(root).as_posix()) for p in root.rglob("*")]
    return sorted(n for n in names if not SKIPPED_FOLDERS & set(n.parts) and (root / n).is_file())


class Report:
    """Collects failures and warnings; prints them as file:line: text."""

    def __init__(self, name):
        self.name = name
        self.failures = []
        self.warnings = []

    def fail(self, file, line, text):
        self.failures.append(f"{file}:{line}: {text}")

    def warn(self, file, line, text):
        self.warnings.append(f"{file}:{line}: warning: {text}")

    def finish(self, checked):
        for text in self.warnings + self.failures:
            print(text)
        print(f"{self.name}: {checked} files, {len(self.failures)} failures, {len(self.warnings)} warnings")
        return 1 if self.failures else 0


def root_from_arguments():
    """The tree named on the command line, else the one this script lies in."""
    return pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
