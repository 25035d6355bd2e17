"""Wrong versions of the library, each of which the tests must catch; mutations.tsv lists them.

``python tests/mutations.py`` applies one mutation after the other to a copy of the tree, runs the
tests named with it and reports which were caught. ``python tests/mutations.py isobn ridge`` runs
those whose file contains one of these words. Each run is a new process that has imported what the
tests need of other packages, as many at a time as there are cores.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("isoadapt", "tests", "benchmarks", "examples", "tools")
FILES = ("pyproject.toml", "constraints.txt", "README.md", "CHANGELOG.md", "Makefile")
SECONDS = 300  # of one run of tests; a mutation that makes them hang counts as caught
PRELOADED = ["pytest", "hypothesis.extra.numpy", "torch", "transformers.trainer", "skorch", "zuko"]
PRELOADED += ["sklearn.model_selection", "sklearn.cluster", "scipy.stats", "pandas", "onnxscript"]
PRELOADED += ["sentence_transformers", "onnxruntime", "skops.io"]


class Mutation(NamedTuple):
    """A change of one file of isoadapt, and the tests that must fail under it."""

    file: str  # below isoadapt/
    old: str  # occurs there exactly once
    new: str
    tests: str  # files below tests/, separated by blanks


def read_mutations(path: Path) -> list[Mutation]:
    """Read the columns file, tests, old and new, in which \\n is a line break."""
    lines = path.read_text("utf-8").splitlines()[1:]
    parts = [[_unescaped(cell) for cell in line.split("\t")] for line in lines]
    return [Mutation(file, old, new, tests) for file, tests, old, new in parts]


def _unescaped(cell: str) -> str:
    return cell.replace("\\\\", "\0").replace("\\n", "\n").replace("\0", "\\")


MUTATIONS = read_mutations(ROOT / "tests" / "mutations.tsv")


def main(words: Sequence[str]) -> int:
    """Run the mutations of the files named by some words, all without any; 1 if one survives."""
    chosen = [m for m in MUTATIONS if not words or any(word in m.file for word in words)]
    check_texts(chosen)
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    os.environ.setdefault("ISOADAPT_SHARED", str(ROOT.parent / "shared"))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    survivors = 0
    with ProcessPoolExecutor(os.cpu_count(), context, max_tasks_per_child=1) as pool:
        names = sorted({name for mutation in chosen for name in mutation.tests.split()})
        unchanged = [Mutation("__init__.py", "", "", name) for name in names]
        failing = [
            m.tests for m, ok in zip(unchanged, pool.map(passes, unchanged), strict=True) if not ok
        ]
        if failing:
            sys.exit(f"without any mutation these fail or take too long: {', '.join(failing)}")
        for mutation, survives in zip(chosen, pool.map(passes, chosen), strict=True):
            survivors += survives
            word = "SURVIVED" if survives else "caught  "
            print(f"{word} {mutation.file}: {mutation.old!r} -> {mutation.new!r}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations are caught")
    return 1 if survivors else 0


def check_texts(mutations: Sequence[Mutation]) -> None:
    """Exit unless every mutation changes its file at exactly one place, and its tests exist."""
    problems = []
    for mutation in mutations:
        count = (ROOT / "isoadapt" / mutation.file).read_text().count(mutation.old)
        if count != 1:
            problems.append(f"{mutation.file}: {mutation.old!r} occurs {count} times, not once")
        missing = [name for name in mutation.tests.split() if not (ROOT / "tests" / name).exists()]
        problems += [f"{mutation.file}: there is no tests/{name}" for name in missing]
    if problems:
        sys.exit("\n".join(problems))


def passes(mutation: Mutation) -> bool:
    """Apply a mutation to a copy of the tree and run its tests there, up to the first failure."""
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve()
        copy_tree(tree)
        file = tree / "isoadapt" / mutation.file
        file.write_text(file.read_text().replace(mutation.old, mutation.new, 1))
        os.environ["PYTHONPATH"] = str(tree)  # of processes that the tests start
        sys.path.insert(0, str(tree))
        os.chdir(tree)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        import isoadapt

        if not Path(isoadapt.__file__).is_relative_to(tree):
            raise ImportError(f"the tests import {isoadapt.__file__} instead of the copy in {tree}")
        signal.alarm(SECONDS)  # raises KeyboardInterrupt, which ends the run
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
        code = pytest.main([*options, *(f"tests/{name}" for name in mutation.tests.split())])
        signal.alarm(0)
        os.chdir(ROOT)
    if code not in (0, 1, 2):  # neither passed, failed nor interrupted: not even collected
        raise RuntimeError(f"pytest ended with {code} for {mutation}")
    return code == 0


def copy_tree(target: Path) -> None:
    """Copy what the tests read."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copyfile(ROOT / name, target / name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
