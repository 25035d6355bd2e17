"""Check that a release could be made: build it, install it elsewhere, and run the README there.

The wheel and the sdist are built by ``python -m build`` in an environment of their own. The wheel
is then installed without its dependencies into a second, empty environment, which reads the
dependencies from the environment that runs this script. The folder of the repository is not on its
path. The README's examples run there on tiny models and texts, in place of the reader's.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 1.5  # seconds of processor time for the help
_DATA = {
    f"isoadapt/{name}"
    for name in (
        "datasets/acceptability.tsv",
        "datasets/similarity_pairs.tsv",
        "datasets/general_sentences.txt.bz2",
        "datasets/general_sentences.LICENSE",
        "report/report.html",
    )
}
README = """
import pathlib, re, sys
import isoadapt
assert isoadapt.__file__.startswith(sys.prefix), isoadapt.__file__
text = open(sys.argv[1], encoding="utf-8").read()
texts = pathlib.Path("texts.txt").read_text().splitlines()
names = {"texts": texts, "new_texts": texts[:60], "new_y": [i % 2 for i in range(60)]}
for block in re.findall(r"```python\\n(.*?)```", text, re.DOTALL):
    exec(compile(block, "README.md", "exec"), names)
"""
CHECKPOINT = """
import itertools, pathlib, sys
from tests.tiny_models import WORDS, make_model, make_tokenizer, save_model
folder = pathlib.Path(sys.argv[1])
save_model(folder / "my-model", num_labels=2)
for part in (make_model(num_labels=2).bert, make_tokenizer()):
    part.save_pretrained(folder / "my-base")
texts = itertools.islice(itertools.permutations(WORDS[:6], 4), 96)
(folder / "texts.txt").write_text("\\n".join(map(" ".join, texts)))
"""


def main() -> None:
    """Run all steps in a temporary folder; the first that fails ends the check."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheel, sdist = _build(work)
        _check_contents(wheel, sdist)
        python = _install(wheel, work / "clean")
        _check_command(python)
        _run_readme(python, work / "run")
    print("The release check passed.")


def _build(work: Path) -> tuple[Path, Path]:
    """Build wheel and sdist in an environment that has nothing but the build tool."""
    python = _make_environment(work / "build")
    _run(python, "-m", "pip", "install", "--quiet", "build")
    _run(python, "-m", "build", "--outdir", work / "dist", ROOT)
    (wheel,), (sdist,) = (work / "dist").glob("*.whl"), (work / "dist").glob("*.tar.gz")
    print(f"Built {wheel.name} ({wheel.stat().st_size // 1024} KiB) and {sdist.name}.")
    return wheel, sdist


def _check_contents(wheel: Path, sdist: Path) -> None:
    """Check that the wheel holds the package alone, and the sdist what its tests need."""
    names = zipfile.ZipFile(wheel).namelist()
    foreign = [name for name in names if not name.startswith(("isoadapt/", "isoadapt-"))]
    missing = {"isoadapt/py.typed", *_DATA} - set(names)
    if foreign or missing:
        raise SystemExit(f"the wheel holds {foreign[:5]}, or lacks {sorted(missing)}")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    missing = {"LICENSE", "README.md", "CHANGELOG.md", "tests/tiny_models.py", *_DATA} - held
    if missing:
        raise SystemExit(f"the sdist lacks {sorted(missing)}")


def _install(wheel: Path, folder: Path) -> Path:
    """Install the wheel alone; dependencies are those of the environment of this script."""
    python = _make_environment(folder)
    _run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    own = _read(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    # A plain path in a .pth file: the editable install of the repository there is not read.
    paths = dict.fromkeys(sysconfig.get_path(key) for key in ("purelib", "platlib"))
    (Path(own) / "dependencies.pth").write_text("\n".join(paths) + "\n")
    return python


def _check_command(python: Path) -> None:
    """Check the version and the time of the help."""
    command = python.parent / "isoadapt"
    version = _read(command, "--version")
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if "version" in required or version not in (ROOT / "isoadapt" / "__init__.py").read_text():
        raise SystemExit(f"isoadapt --version prints {version}, not that of isoadapt/__init__.py")
    if (
        _read(python, "-c", "from importlib.metadata import *; print(version('isoadapt'))")
        != version
    ):
        raise SystemExit("the wheel's version is another one than isoadapt.__version__")
    for arguments in (["--help"], ["fit", "--help"]):
        _read(command, *arguments)  # once before, so that bytecode and files are cached
        before = os.times()
        _read(command, *arguments)
        after = os.times()
        seconds = after.children_user + after.children_system
        seconds -= before.children_user + before.children_system
        print(f"isoadapt {' '.join(arguments)}: {seconds:.2f} s of processor time.")
        if seconds > LIMIT:
            raise SystemExit(f"isoadapt {' '.join(arguments)} takes more than {LIMIT} s")


def _run_readme(python: Path, folder: Path) -> None:
    """Run every Python block of the README in one process, away from the repository."""
    folder.mkdir()
    subprocess.run([sys.executable, "-c", CHECKPOINT, folder], check=True, cwd=ROOT)
    shutil.copy(ROOT / "README.md", folder)
    start = time.perf_counter()
    _run(python, "-c", README, "README.md", cwd=folder)
    print(f"The README's examples ran in {time.perf_counter() - start:.0f} s.")


def _make_environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def _run(*command: object, cwd: Path | None = None) -> None:
    subprocess.run([str(each) for each in command], check=True, cwd=cwd, env=_environment())


def _read(*command: object) -> str:
    done = subprocess.run(
        [str(each) for each in command],
        check=True,
        capture_output=True,
        text=True,
        env=_environment(),
    )
    return done.stdout.strip()


def _environment() -> dict[str, str]:
    """Return the environment without what would put the repository on Python's path."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


if __name__ == "__main__":
    main()
