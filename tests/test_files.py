"""Files and folders are whole or absent, and what nobody wrote by isoadapt is never replaced."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from isoadapt import Whitening
from isoadapt._utils.files import (
    ADAPTER,
    CHECKPOINT,
    MARKER,
    atomic_folder,
    atomic_path,
    check_output_folder,
    check_writable,
    writable_folder,
)
from isoadapt.interop import load_adapter, save_adapter

X = np.random.default_rng(0).normal(size=(60, 4)) * [9, 3, 1, 1]


def contents(folder):
    """Every file below `folder` with its bytes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def fill(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write(target, files, content=CHECKPOINT, overwrite=False):
    with atomic_folder(target, overwrite, content) as folder:
        fill(folder, files)
    return target


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("old", [None, "old"])
def test_content_is_replaced_by_all_that_is_new_or_not_at_all(tmp_path, kind, old):
    target = tmp_path / "model.safetensors"
    if old:
        fill(tmp_path, {target.name: old}) if kind == "file" else write(target, {"a": old})
    before = contents(tmp_path)

    def replace(error=None):
        writer = atomic_path(str(target))
        if kind == "folder":
            writer = atomic_folder(target, True, CHECKPOINT)
        with writer as path:
            path.write_text("new") if kind == "file" else fill(path, {"sub/b": "new"})
            found = contents(tmp_path).items()
            assert {k: v for k, v in found if Path(k).parts[0] == target.name} == before  # not yet
            if error:
                raise error

    for error in (OSError, KeyboardInterrupt):
        with pytest.raises(error):
            replace(error)
        assert contents(tmp_path) == before
    replace()
    new = {target.name} if kind == "file" else {f"{target.name}/{k}" for k in ("sub/b", MARKER)}
    assert contents(tmp_path).keys() == new
    assert os.listdir(tmp_path) == [target.name]


class TestFiles:
    def test_a_failed_rename_leaves_nothing_behind(self, tmp_path):
        (tmp_path / "taken").mkdir()
        with pytest.raises(OSError, match="taken"), atomic_path(tmp_path / "taken") as path:
            path.write_text("new")
        assert os.listdir(tmp_path) == ["taken"]

    def test_other_writers_and_a_new_working_folder_do_not_matter(self, tmp_path, monkeypatch):
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        with atomic_path("a.bin") as first:
            monkeypatch.chdir("elsewhere")
            first.write_text("first")
            with atomic_path(tmp_path / "a.bin") as second:
                second.write_text("second")
            assert contents(tmp_path)["a.bin"] == b"second"
        assert contents(tmp_path) == {"a.bin": b"first"}

    @pytest.mark.skipif(os.name != "posix", reason="this system has no umask")
    @pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
    def test_files_have_the_permissions_of_any_new_file(self, tmp_path, umask, mode):
        before = os.umask(umask)
        try:
            with atomic_path(tmp_path / "a.bin") as path:
                path.write_text("new")
                path.chmod(0o640)  # as some libraries do
            save_adapter(Whitening().fit(X), tmp_path / "a")
        finally:
            os.umask(before)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(files) == 4
        assert {path.stat().st_mode & 0o777 for path in files} == {mode}

    def test_a_writable_folder_is_made_and_an_unwritable_one_is_named(self, tmp_path):
        folder = tmp_path / "a" / "b"
        assert check_writable(folder) == folder
        assert os.listdir(tmp_path) == []
        assert writable_folder(str(folder)) == folder
        assert os.listdir(folder) == []
        fill(tmp_path, {"file": "kept"})
        for check in (check_writable, writable_folder):
            with pytest.raises(OSError, match=r"file.*a/b.*choose another folder"):
                check(tmp_path / "file/a/b")
        assert contents(tmp_path) == {"file": b"kept"}

    def test_the_target_of_a_link_is_made(self, tmp_path):
        (tmp_path / "link").symlink_to("gone/target")
        for folder in (tmp_path / "link", tmp_path / "link" / "below"):
            assert writable_folder(folder) == folder
        assert os.listdir(tmp_path / "gone" / "target") == ["below"]


class TestFolders:
    def test_a_failed_rename_puts_the_old_folder_back(self, tmp_path, monkeypatch):
        target = write(tmp_path / "model", {"a": "old"})
        before, rename = contents(tmp_path), Path.rename

        def fail(path, aim):
            if "-new-" in path.name:
                raise KeyboardInterrupt("no")
            return rename(path, aim)

        monkeypatch.setattr(Path, "rename", fail)
        with pytest.raises(KeyboardInterrupt, match="no"):
            write(target, {"b": "new"}, overwrite=True)
        assert contents(tmp_path) == before

    def test_files_that_appear_in_the_meantime_are_kept(self, tmp_path):
        target = tmp_path / "model"

        def race(overwrite):
            with atomic_folder(target, overwrite, CHECKPOINT) as folder:
                fill(folder, {"b": "new"})
                fill(target, {"precious": "mine"})

        for overwrite in (False, True):
            with pytest.raises(FileExistsError, match="model"):
                race(overwrite)
            assert contents(tmp_path) == {"model/precious": b"mine"}

    def test_an_output_folder_must_be_new_or_empty_or_replaceable(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        for name in ("a/b", "~/a/b"):
            assert check_output_folder(name, overwrite=False) == tmp_path / "a" / "b"
        assert os.listdir(tmp_path) == []
        fill(tmp_path, {"a/b/config.json": "kept"})
        with pytest.raises(FileExistsError, match=r"'a/b'.*overwrite=True"):
            check_output_folder("a/b", overwrite=False)
        monkeypatch.chdir("a")
        monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "mount")
        for name in ("", ".", "..", "b/config.json", "b/config.json/c", tmp_path / "mount"):
            for overwrite in (False, True):
                with pytest.raises(OSError, match="choose a"):
                    check_output_folder(name, overwrite)
        assert contents(tmp_path) == {"a/b/config.json": b"kept"}


def refuse(folder, *names, content=CHECKPOINT):
    """Check that a folder is not replaced, before work and after it, and that it says why."""
    before = contents(folder)
    with pytest.raises(FileExistsError) as early:
        check_output_folder(folder, overwrite=True, content=content)
    with pytest.raises(FileExistsError) as late:
        write(folder, {"config.json": "new"}, content, overwrite=True)
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    for message in map(str, (early.value, late.value)):
        assert all(repr(name) in message for name in names), message


class TestReplacement:
    """What may be replaced: marked folders, and those that save_pretrained wrote."""

    def test_a_marked_folder_is_replaced_unless_something_was_added(self, tmp_path):
        folder = save_adapter(Whitening().fit(X), tmp_path / "a")
        title, *names = (folder / MARKER).read_text().splitlines()
        assert title.startswith("# an adapter, written by isoadapt; ")
        assert names == ["README.md", "adapter.skops"]
        refuse(folder, "adapter.skops", content=CHECKPOINT)  # another kind
        fill(folder, {"README.md": "changed"})
        save_adapter(Whitening(strength=0.5).fit(X), folder, overwrite=True)
        assert load_adapter(folder).strength == 0.5
        assert contents(folder).keys() == {*names, MARKER}
        fill(folder, {"notes.txt": "mine", "run/weights.safetensors": "mine"})
        (folder / "empty").mkdir()
        refuse(folder, "notes.txt", "run/weights.safetensors", "empty", content=ADAPTER)

    @pytest.mark.parametrize("text", [None, "", "# a checkpoint", "\0", "# an adapter"])
    def test_a_folder_without_a_marker_is_kept(self, text, tmp_path):
        folder = write(tmp_path / "out", {"config.json": "{}"})
        (folder / MARKER).unlink()
        refuse(fill(folder, {} if text is None else {MARKER: text}), "config.json")

    def test_the_model_that_is_read_is_kept(self, checkpoint, tmp_path):
        out = write(tmp_path / "out", {"config.json": "{}"})
        (tmp_path / "link").symlink_to(tmp_path)
        for model in (out, tmp_path / "link" / "out"):
            with pytest.raises(FileExistsError, match="is the model that is read"):
                check_output_folder(out, True, model=model)
        write(check_output_folder(out, True, model=checkpoint), {"a": "new"}, overwrite=True)

    def test_what_others_saved_is_kept(self, checkpoint, tmp_path):
        refuse(shutil.copytree(checkpoint, tmp_path / "out"), "config.json", "model.safetensors")
