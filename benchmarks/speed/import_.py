"""Importing all names of isoadapt in a new process, against importing scikit-learn and torch."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.speed._harness import Comparison, compare

LAZY = {"transformers", "zuko", "matplotlib"}  # must not be loaded
ALL = (
    f"import sys; from isoadapt import *; sys.exit(str({LAZY} & sys.modules.keys() or '') or None)"
)


def run(quick: bool) -> Iterator[Comparison]:
    """Compare times that include the interpreter's start."""
    yield compare(
        "from isoadapt import *, in a new process, against import sklearn, torch",
        partial(_run, ALL),
        partial(_run, "import sklearn, torch"),
        repeats=1 if quick else 3,
        target=1 / 1.5,
    )


def _run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)
