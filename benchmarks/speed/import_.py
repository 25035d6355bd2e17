"""Importing all names of isoadapt in a new process, against importing scikit-learn and torch."""

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.speed._harness import Comparison, compare

LAZY = {"transformers", "zuko", "matplotlib"}


def run(quick: bool) -> Iterator[Comparison]:
    """Compare times that include the interpreter's start."""
    yield compare(
        "from isoadapt import *, in a new process, against import sklearn, torch",
        _import_all,
        lambda: _run("import sklearn, torch"),
        repeats=1 if quick else 3,
        target=1 / 1.5,
    )


def _import_all() -> None:
    loaded = _run(f"import sys; from isoadapt import *; print(*(sys.modules.keys() & {LAZY}))")
    if loaded.strip():
        raise RuntimeError(f"`from isoadapt import *` loads {loaded.strip()}, which it must not")


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout
