"""The commit of the code that is running."""

import subprocess
from functools import cache
from pathlib import Path

from benchmarks._places import ROOT

COMMIT_FILE = "COMMIT"  # file at the root of an exported copy, which has no repository


@cache
def commit(root: Path = ROOT) -> str:
    """Return the commit of a checkout or of an exported copy; the first result is cached.

    The suffix "-dirty" marks a checkout with changes. Without a repository it is "unknown".
    """
    file = root / COMMIT_FILE
    if file.exists():
        return file.read_text("utf-8").strip()
    try:
        head = _git(root, "rev-parse", "HEAD")
        return f"{head}-dirty" if _git(root, "status", "--porcelain") else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(root: Path, *arguments: str) -> str:
    run = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
    )
    return run.stdout.strip()
