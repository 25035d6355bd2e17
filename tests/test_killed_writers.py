"""Folders under kills and concurrent writers, and settings of the process that stay as they are."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from isoadapt._utils import exchange as module, files, folders
from isoadapt._utils.exchange import exchange, try_lock, while_locked
from isoadapt._utils.files import atomic_path
from isoadapt._utils.folders import Content, atomic_folder
from tests.interrupts import Interrupt

KIND = Content("a test folder")
STEPS = (contextlib, module, files, folders)
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges folders")
posix = pytest.mark.skipif(module.fcntl is None, reason="this system has no locks on folders")


def write(target, text, overwrite=True):
    with atomic_folder(target, overwrite, KIND) as folder:
        (folder / "a.txt").write_text(text)


def stress(tmp_path, kills, writers, way):
    completed = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.faults.folders",
            tmp_path,
            str(kills),
            str(writers),
            way,
        ],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        check=True,
        timeout=500,
    )
    return json.loads(completed.stdout)


def check_stress(tmp_path, kills, writers, way):
    found = stress(tmp_path, kills, writers, way)
    assert found["kills"] == kills
    assert found["whole"] > kills
    assert found["mixed"] == 0
    assert found["errors"] == []
    assert found["leftovers"] <= writers  # those of the last kills
    assert found["found"] == ["out"]
    assert found["last"]
    assert found["absent"] == 0 or way == "rename"


@linux
@pytest.mark.parametrize("way", ["exchange", "rename"])
def test_a_few_kills(tmp_path, way):
    check_stress(tmp_path, 20, 2, way)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("writers", [1, 3])
@pytest.mark.parametrize("way", ["exchange", "rename"])
def test_hundreds_of_kills(tmp_path, writers, way):
    check_stress(tmp_path, 400, writers, way)


@linux
def test_two_folders_are_exchanged(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("the file system cannot exchange folders")
    assert (tmp_path / "a" / "file").read_text() == "b"
    assert (tmp_path / "b" / "file").read_text() == "a"
    with pytest.raises(FileNotFoundError, match="absent"):
        exchange(tmp_path / "a", tmp_path / "absent")


@posix
def test_a_lock_that_is_never_released_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_WAIT", 0.1)
    with try_lock(tmp_path) as free:
        assert free
        with pytest.raises(OSError, match="another process has been writing"):
            while_locked(tmp_path, lambda _: pytest.fail("the lock is held"))
    assert while_locked(tmp_path, lambda has_locks: has_locks)


def test_a_folder_is_replaced_where_there_are_no_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "fcntl", None)
    monkeypatch.setattr(folders, "exchange", lambda first, second: False)
    for text in ("old", "new"):
        write(tmp_path / "out", text)
        assert (tmp_path / "out" / "a.txt").read_text() == text
        assert os.listdir(tmp_path) == ["out"]


@posix
class TestLeftovers:
    def leftover(self, tmp_path, files):
        folder = tmp_path / ".out.isoadapt-abcd1234"
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("left")
        return folder

    def test_those_of_killed_processes_are_removed(self, tmp_path):
        self.leftover(tmp_path, ["new/a.txt"])
        write(tmp_path / "out", "new")
        assert os.listdir(tmp_path) == ["out"]

    def test_those_of_other_folders_and_of_running_processes_are_kept(self, tmp_path):
        others = [".other.isoadapt-abcd1234", ".out-abcd1234", ".out.b.isoadapt-abcd1234"]
        for name in others:
            (tmp_path / name).mkdir()
        with try_lock(self.leftover(tmp_path, ["new/a.txt"])) as free:
            assert free
            write(tmp_path / "out", "new")
        assert sorted(os.listdir(tmp_path)) == sorted([*others, ".out.isoadapt-abcd1234", "out"])

    def test_a_folder_that_was_moved_aside_is_put_back(self, tmp_path):
        write(tmp_path / "out", "old")
        aside = self.leftover(tmp_path, ["replacing", "new/a.txt"])
        (aside / "new" / "a.txt").unlink()
        (tmp_path / "out").rename(aside / "old")
        with pytest.raises(FileExistsError):
            write(tmp_path / "out", "new", overwrite=False)
        assert (tmp_path / "out" / "a.txt").read_text() == "old"
        assert os.listdir(tmp_path) == ["out"]

    def test_files_that_may_not_be_replaced_are_never_removed(self, tmp_path):
        write(tmp_path / "out", "old")
        left = self.leftover(tmp_path, ["replacing", "new/mine.txt"])
        write(tmp_path / "out", "new")
        assert (left / "new" / "mine.txt").read_text() == "left"


@posix
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_interrupt_at_any_step_leaves_nothing_after_the_next_write(tmp_path, kind):
    def replace(text):
        if kind == "folder":
            return write(tmp_path / "out", text)
        with atomic_path(tmp_path / "out") as path:
            path.write_text(text)

    def content():
        return (tmp_path / "out" / "a.txt" if kind == "folder" else tmp_path / "out").read_text()

    replace("first")
    step = 1
    while (interrupt := Interrupt(step, STEPS)).reached(lambda: replace(f"{step}")):  # noqa: B023
        assert content() in ("first", f"{step}")
        with try_lock(tmp_path) as free:
            assert free
        interrupt.error = None
        replace("first")
        assert (content(), os.listdir(tmp_path)) == ("first", ["out"])
        step += 1
    assert step > 100


def test_the_umask_is_never_set(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask is global"))
    with atomic_path(tmp_path / "file") as path:
        path.write_text("new")
    write(tmp_path / "out", "new")
