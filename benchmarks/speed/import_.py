"""Time of importing all names of isoadapt in a new process, including interpreter start."""

import subprocess
import sys

from benchmarks.speed._harness import Comparison, compare

LAZY = ("transformers", "zuko", "matplotlib", "lmdb")


def run(quick: bool) -> list[Comparison]:
    """Measure against importing its required packages scikit-learn and torch."""
    loaded = _run(
        f"import sys; from isoadapt import *; print(*(sys.modules.keys() & set({LAZY})))"
    ).split()
    if loaded:
        raise RuntimeError(f"`from isoadapt import *` loads {', '.join(loaded)}, which it must not")
    return [
        compare(
            "from isoadapt import *, in a new process, against import sklearn, torch",
            lambda: _run("from isoadapt import *"),
            lambda: _run("import sklearn, torch"),
            repeats=1 if quick else 5,
            target=1 / 1.5,
            not_loaded=list(LAZY),
        )
    ]


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout
