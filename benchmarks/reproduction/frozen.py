"""Run the whole reproduction from a copy of a commit; `make reproduction` calls this module.

The copy is in build/reproduction/COMMIT of the checkout, so that changes to the code do not disturb
a run of several days. Records, report and embeddings are written to the checkout.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from benchmarks._commit import COMMIT_FILE
from benchmarks._data import shared_folder
from benchmarks._places import ROOT

COPIES = Path("build", "reproduction")
NICE = 19


def copy_of(commit: str | None, root: Path = ROOT) -> Path:
    """Return the folder with the copy of a commit, which is created if it does not exist.

    Without a commit, this is the newest copy, or a copy of HEAD if there is none. SystemExit is
    raised if the commit does not exist.
    """
    copies = root / COPIES
    if commit is None and (made := sorted(copies.glob("*/" + COMMIT_FILE), key=_age)):
        return made[-1].parent
    named = _git(root, "rev-parse", "--verify", f"{commit or 'HEAD'}^{{commit}}").decode().strip()
    copy = copies / named
    if not copy.exists():
        _export(root, named, copy)
    return copy


def _age(file: Path) -> float:
    return file.stat().st_mtime


def _export(root: Path, commit: str, copy: Path) -> None:
    """Write the files of a commit, atomically."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    archive = _git(root, "archive", "--format=tar", commit)
    temporary = Path(tempfile.mkdtemp(prefix=".copy-", dir=copy.parent))
    try:
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(temporary, filter="data")
        (temporary / COMMIT_FILE).write_text(f"{commit}\n", "utf-8")
        temporary.rename(copy)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _git(root: Path, *arguments: str) -> bytes:
    run = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    if run.returncode:
        raise SystemExit(
            f"git {' '.join(arguments)} failed: {run.stderr.decode().strip()}; name a commit of "
            "this repository by COMMIT=..."
        )
    return run.stdout


def command(copy: Path, options: Sequence[str], root: Path = ROOT) -> list[str]:
    """Return the command that runs the whole suite with the code of a copy."""
    benchmarks = root / "benchmarks"
    return [
        sys.executable,
        "-m",
        _module(copy),
        "--suite=whole",
        "--frozen",
        f"--out={benchmarks / 'reproduction' / 'results'}",
        f"--report={copy.parent / 'REPRODUCTION.md'}",
        f"--cache={benchmarks / 'results' / 'reproduction-cache'}",
        *options,
    ]


def _module(copy: Path) -> str:
    """Return the name of the module to run, which was different in earlier commits."""
    has_moved = (copy / "benchmarks" / "reproduction" / "__main__.py").exists()
    return "benchmarks.reproduction" if has_moved else "benchmarks.reproduce"


def environment(copy: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the run: one thread, code of the copy, data of the checkout."""
    return {
        **given,
        "PYTHONPATH": str(copy),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "ISOADAPT_SHARED": str(shared_folder()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Replace this process by the run, so that the run receives signals."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reproduction.frozen", description=__doc__
    )
    parser.add_argument(
        "--commit", help="which commit; default: that of the newest copy, else HEAD"
    )
    options, rest = parser.parse_known_args(arguments)
    copy = copy_of(options.commit or None)
    print(f"running {copy.name} from {copy}", flush=True)
    os.nice(NICE)
    os.chdir(copy)
    os.execve(sys.executable, command(copy, rest), environment(copy, os.environ))


if __name__ == "__main__":
    main()
