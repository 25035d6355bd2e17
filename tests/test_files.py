"""Files are whole or absent; folders that cannot be written to say so; so do missing packages."""

import os
import subprocess
import sys

import pytest

from isoadapt._utils.files import atomic_path, writable_folder
from isoadapt._utils.folders import Content, atomic_folder, check_output_folder, reserved_folder
from isoadapt._utils.optional import import_optional


@pytest.mark.parametrize("old", [None, "old"])
def test_success_replaces_the_file_and_leaves_nothing_else(tmp_path, old):
    target = tmp_path / "model.safetensors"
    if old is not None:
        target.write_text(old)
    with atomic_path(target) as path:
        assert path.parent.parent == tmp_path
        assert path.name == target.name
        assert path != target
        path.write_text("new")
        assert (target.read_text() if target.exists() else None) == old  # not yet
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == [target.name]


@pytest.mark.parametrize("error", [RuntimeError, OSError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("old", [None, "old"])
def test_an_error_or_interrupt_leaves_the_old_file_and_nothing_else(tmp_path, old, error):
    target = tmp_path / "model.bin"
    if old is not None:
        target.write_text(old)

    def write_half():
        with atomic_path(str(target)) as path:
            path.write_text("half of the n")
            raise error

    with pytest.raises(error):
        write_half()
    assert os.listdir(tmp_path) == ([] if old is None else [target.name])
    assert old is None or target.read_text() == old


def test_a_block_that_loses_its_file_leaves_the_old_one(tmp_path):
    target = tmp_path / "model.bin"
    target.write_text("old")
    with pytest.raises(FileNotFoundError), atomic_path(target) as path:
        path.unlink()
    assert os.listdir(tmp_path) == [target.name]
    assert target.read_text() == "old"


def test_a_failed_rename_leaves_nothing_behind(tmp_path):
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(OSError, match="taken"), atomic_path(target) as path:
        path.write_text("new")
    assert os.listdir(tmp_path) == ["taken"]
    assert target.is_dir()


def test_a_bare_name_is_written_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with atomic_path("report.html") as path:
        path.write_text("new")
    assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_file_has_the_permissions_of_any_new_file(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        with atomic_path(tmp_path / "a.bin") as path:
            path.write_text("new")
        assert os.umask(umask) == umask  # as it was
    finally:
        os.umask(before)
    assert (tmp_path / "a.bin").stat().st_mode & 0o777 == mode


def test_a_killed_process_leaves_the_old_file(tmp_path):
    target = tmp_path / "a.bin"
    target.write_text("old")
    program = (
        "import os, runpy, sys\n"
        "atomic_path = runpy.run_path(sys.argv[2])['atomic_path']\n"  # without loading torch
        "with atomic_path(sys.argv[1]) as path:\n"
        "    path.write_text('half')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    source = sys.modules["isoadapt._utils.files"].__file__
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", program, target, source], check=False)
        assert killed.returncode == -9
        assert target.read_text() == "old"
        assert len(os.listdir(tmp_path)) == 2  # the second process removes what the first left
    with atomic_path(tmp_path / "b.bin") as path:
        path.write_text("another file")
    assert len(os.listdir(tmp_path)) == 3
    with atomic_path(target) as path:
        path.write_text("new")
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "b.bin"]


def test_writers_of_the_same_file_leave_each_other_alone(tmp_path):
    target = tmp_path / "a.bin"
    with atomic_path(target) as first:
        first.write_text("first")
        with atomic_path(target) as second:
            second.write_text("second")
        assert target.read_text() == "second"
    assert target.read_text() == "first"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_the_working_folder_may_change_while_a_file_is_written(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with atomic_path("report.html") as path:
        path.write_text("new")
        monkeypatch.chdir("elsewhere")
    assert (tmp_path / "report.html").read_text() == "new"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_missing_folder_is_an_oserror(tmp_path):
    with pytest.raises(OSError, match="absent"), atomic_path(tmp_path / "absent" / "a.bin"):
        pytest.fail("there is no folder to write into")


def test_a_writable_folder_is_made_with_its_parents_and_left_empty(tmp_path):
    folder = tmp_path / "a" / "b"
    assert writable_folder(str(folder)) == folder
    assert folder.is_dir()
    assert os.listdir(folder) == []
    (folder / "kept").write_text("kept")
    assert writable_folder(folder) == folder
    assert (folder / "kept").read_text() == "kept"


@pytest.mark.parametrize("below", ["", "a", "a/b"])
def test_an_unwritable_folder_is_named_with_the_way_out(tmp_path, below):
    file = tmp_path / "file"
    file.write_text("kept")
    folder = file / below if below else file
    with pytest.raises(OSError, match="choose another folder") as caught:
        writable_folder(folder)
    assert repr(str(folder)) in str(caught.value)
    assert file.read_text() == "kept"


ANYTHING = Content("anything", lambda folder, names: names, listed=False)


def contents(folder):
    """Every file below `folder` with its text."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


@pytest.mark.parametrize("old", [{}, {"a": "old"}])
def test_a_folder_is_replaced_as_a_whole(tmp_path, old):
    target = tmp_path / "model"
    for name, text in old.items():
        target.mkdir()
        (target / name).write_text(text)
    with atomic_folder(target, overwrite=True, content=ANYTHING) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "b").write_text("new")
        assert contents(target) == old  # not yet
    assert contents(tmp_path) == {"model/sub/b": "new"}
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("old", [{}, {"a": "old"}])
def test_an_error_or_interrupt_leaves_the_old_folder_and_nothing_else(tmp_path, old, error):
    target = tmp_path / "model"
    for name, text in old.items():
        target.mkdir()
        (target / name).write_text(text)

    def write_half():
        with atomic_folder(target, overwrite=True, content=ANYTHING) as folder:
            (folder / "b").write_text("half of the n")
            raise error

    with pytest.raises(error):
        write_half()
    assert os.listdir(tmp_path) == (["model"] if old else [])
    assert contents(target) == old


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "a").write_text("old")

    def lose():
        with atomic_folder(target, overwrite=True, content=ANYTHING) as folder:
            folder.rmdir()

    with pytest.raises(FileNotFoundError):
        lose()
    assert contents(tmp_path) == {"model/a": "old"}
    assert os.listdir(tmp_path) == ["model"]


def test_an_output_folder_must_be_new_or_empty_unless_it_may_be_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_output_folder("a/b", overwrite=False) == tmp_path / "a" / "b"
    assert check_output_folder("~/a/b", overwrite=False) == tmp_path / "a" / "b"
    (tmp_path / "a" / "b").mkdir()
    assert check_output_folder(tmp_path / "a" / "b", overwrite=False).is_dir()
    (tmp_path / "a" / "b" / "config.json").write_text("kept")
    with pytest.raises(FileExistsError, match=r"'a/b' exists and is not empty.*overwrite=True"):
        check_output_folder("a/b", overwrite=False)
    assert check_output_folder("a/b", True, content=ANYTHING) == tmp_path / "a" / "b"
    assert contents(tmp_path) == {"a/b/config.json": "kept"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_output_folder_that_cannot_be_is_refused_at_once(tmp_path, overwrite):
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(FileExistsError, match="is a file; choose another name"):
        check_output_folder(file, overwrite)
    with pytest.raises(OSError, match="choose another folder"):
        check_output_folder(file / "a" / "b", overwrite)
    assert contents(tmp_path) == {"file": "kept"}


def test_a_missing_package_names_feature_package_and_extra():
    with pytest.raises(ImportError) as caught:
        import_optional("no_such_package.sub", feature="The report", extra="plot")
    assert str(caught.value) == (
        'The report needs no_such_package, which is not installed: pip install "isoadapt[plot]"'
    )


def test_a_package_that_is_there_is_returned():
    assert import_optional("os.path", feature="x", extra="y") is os.path


def test_only_a_checkpoint_is_ever_replaced(tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "config.json").write_text('{"transformers_version": "5.0.0"}')
    (mine / "model.safetensors").write_text("")
    (mine / "keep.py").write_text("")
    with pytest.raises(FileExistsError, match=r"1 of the files .* a checkpoint .*\('keep.py'\)"):
        check_output_folder(mine, overwrite=True)
    monkeypatch.chdir(mine)
    for folder in ("", ".", ".."):
        with pytest.raises(FileExistsError, match="is a folder that is in use"):
            check_output_folder(folder, overwrite=True)
    (mine / "keep.py").unlink()
    monkeypatch.chdir(tmp_path)
    assert check_output_folder(mine, overwrite=True) == mine


def test_files_that_appear_in_the_meantime_are_kept(tmp_path):
    target = tmp_path / "model"

    def race():
        with atomic_folder(target, overwrite=False, content=ANYTHING) as folder:
            (folder / "b").write_text("new")
            target.mkdir()
            (target / "precious").write_text("mine")

    with pytest.raises(FileExistsError, match="in the meantime"):
        race()
    assert contents(tmp_path) == {"model/precious": "mine"}
    (target / "precious").unlink()
    with atomic_folder(
        target, overwrite=False, content=ANYTHING
    ) as folder:  # an empty one is no loss
        (folder / "b").write_text("new")
    assert contents(tmp_path) == {"model/b": "new"}


@pytest.mark.parametrize("filled", [False, True])
def test_folders_made_for_nothing_are_removed_if_they_are_empty(tmp_path, filled):
    (tmp_path / "a").mkdir()

    def reserve_in_vain():
        with reserved_folder(tmp_path / "a" / "b" / "c" / "out", overwrite=False) as target:
            assert target.parent.is_dir()
            if filled:
                (target.parent.parent / "file").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reserve_in_vain()
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert left == (["a", "a/b", "a/b/file"] if filled else ["a"])
