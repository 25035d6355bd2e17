"""The frozen copy: a commit's code, run with the checkout's records."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks._commit import commit
from benchmarks._places import ROOT
from benchmarks.reproduction import __main__ as reproduce, frozen


@pytest.fixture
def checkout(tmp_path):
    """A repository of two commits."""
    root = tmp_path / "checkout"
    root.mkdir()

    def git(*arguments):
        names = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", "-C", str(root), *names, *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    commits = []
    for text in ("old", "new"):
        (root / "code.py").write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", text)
        commits.append(git("rev-parse", "HEAD"))
    return SimpleNamespace(root=root, commits=commits)


def test_the_copy_is_that_of_head_and_stays(checkout):
    old, new = checkout.commits
    copy = frozen.copy_of(None, checkout.root)
    assert copy == checkout.root / "build" / "reproduction" / new
    assert (copy / "code.py").read_text() == "new"
    assert commit(copy) == new
    (checkout.root / "code.py").write_text("changed")
    assert frozen.copy_of(None, checkout.root) == copy
    assert (copy / "code.py").read_text() == "new"
    chosen = frozen.copy_of(old[:8], checkout.root)
    assert (chosen / "code.py").read_text() == "old"
    assert sorted(path.name for path in copy.parent.iterdir()) == sorted([old, new])


def test_a_commit_that_is_not_there_is_named(checkout):
    with pytest.raises(SystemExit, match=r"nonsense.*name a commit"):
        frozen.copy_of("nonsense", checkout.root)
    assert not (checkout.root / "build").exists()


def test_a_checkout_tells_its_commit_and_its_changes(checkout, tmp_path):
    commit.cache_clear()
    assert commit(checkout.root) == checkout.commits[-1]
    commit.cache_clear()
    (checkout.root / "code.py").write_text("changed")
    assert commit(checkout.root) == f"{checkout.commits[-1]}-dirty"
    commit.cache_clear()


def test_the_run_uses_one_thread_the_copy_s_code_and_the_checkout_s_folders(tmp_path):
    copy = tmp_path / "build" / "reproduction" / "abc"
    given = {"PATH": "p", "PYTHONPATH": "elsewhere", "OMP_NUM_THREADS": "8"}
    found = frozen.environment(copy, given)
    assert (found["PYTHONPATH"], found["PATH"]) == (str(copy), "p")
    assert (found["OMP_NUM_THREADS"], found["TOKENIZERS_PARALLELISM"]) == ("1", "false")
    command = frozen.command(copy, ["--budget", "60"], tmp_path)
    options = reproduce.parse(command[3:])
    assert command[0] == sys.executable
    assert (options.suite, options.budget, options.frozen) == ("whole", 60.0, True)
    assert options.out == tmp_path / "benchmarks" / "reproduction" / "results"
    assert options.report == tmp_path / "build" / "reproduction" / "REPRODUCTION.md"
    assert options.cache == tmp_path / "benchmarks" / "results" / "reproduction-cache"


@pytest.mark.parametrize(
    ("module", "named"),
    [
        ("reproduce.py", "benchmarks.reproduce"),
        ("reproduction/__main__.py", "benchmarks.reproduction"),
    ],
)
def test_a_copy_of_an_earlier_commit_is_run_by_the_module_it_has(tmp_path, module, named):
    file = tmp_path / "benchmarks" / module
    file.parent.mkdir(parents=True)
    file.touch()
    assert frozen.command(tmp_path, [], tmp_path)[1:3] == ["-m", named]


def test_a_frozen_run_refuses_the_library_of_another_place(tmp_path):
    reproduce.check_frozen(ROOT)
    with pytest.raises(SystemExit, match="set PYTHONPATH"):
        reproduce.check_frozen(tmp_path)
