"""The commit of the code that is running."""

import subprocess
from functools import cache
from pathlib import Path

from benchmarks._places import ROOT


@cache
def commit(root: Path = ROOT) -> str:
    """Return the commit, with the suffix "-dirty" if files were changed; else "unknown"."""
    try:
        head = _git(root, "rev-parse", "HEAD")
        return f"{head}-dirty" if _git(root, "status", "--porcelain") else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
