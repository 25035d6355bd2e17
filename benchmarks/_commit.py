"""The commit of the code that runs."""

import subprocess
from functools import cache
from pathlib import Path

from benchmarks._places import ROOT

COMMIT_FILE = "COMMIT"  # at the root of an exported copy, which has no repository


@cache
def commit(root: Path = ROOT) -> str:
    """Return the commit of a checkout or of an exported copy, as it was at the first call.

    A checkout with changes has "-dirty" at the end; without a repository it is "unknown".
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
