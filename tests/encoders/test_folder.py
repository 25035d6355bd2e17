"""Weights are only read from safetensors files inside the checkpoint's folder."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._identity import checkpoint_identity
from isoadapt.finetune import add_isobn, finetune_text_classifier
from tests.encoders.changes import change_weights, edit, negate
from tests.tiny_models import TEXTS, save_model

KIND = "sentence_transformers.models."


def sharded(checkpoint, folder, name):
    """Copy a checkpoint with its weights in one shard that the index calls `name`."""
    shutil.copytree(checkpoint, folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shard = folder / name  # outside the folder for some names
    shard.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".bin"):
        torch.save(weights, shard)
    else:
        save_file(weights, shard, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, str(name))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def named_by_config(checkpoint, folder, name):
    return edit(shutil.copytree(checkpoint, folder), transformers_weights=name)


def named_by_modules(checkpoint, folder, name):
    shutil.copytree(checkpoint, folder / name.lstrip("/"))
    modules = [{"path": name, "type": KIND + "Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.mark.parametrize(
    ("save", "name", "says"),
    [
        (sharded, "../elsewhere/s.safetensors", "not inside"),
        (sharded, "sub/../../s.safetensors", "not inside"),
        (sharded, "pytorch_model-00001-of-00001.bin", "only safetensors"),
        (named_by_config, "../weights.safetensors", "not inside"),
        (named_by_modules, "/other", "not inside"),
    ],
)
def test_other_files_are_not_read(checkpoint, tmp_path, save, name, says, loads):
    folder = save(checkpoint, tmp_path / "copy", name)
    for encoder in (TransformerEncoder(folder), TransformerEncoder(folder, cache=tmp_path / "c")):
        with pytest.raises(ValueError, match=says):
            encoder.transform(TEXTS)
    assert not loads


def test_other_functions_that_load_a_checkpoint_refuse_it(checkpoint, tmp_path):
    folder = sharded(checkpoint, tmp_path / "copy", "../elsewhere/shard.safetensors")
    with pytest.raises(ValueError, match="not inside"):
        finetune_text_classifier(folder, TEXTS, [0, 1] * 4, tmp_path / "out", epochs=1)
    save_file({"classifier.isobn.mean": torch.ones(2)}, folder / "model-x.safetensors")
    with pytest.raises(ValueError, match="not inside"):
        add_isobn(folder)


def test_shards_inside_the_folder_are_part_of_the_identity(checkpoint, tmp_path):
    name = "a/b/c.safetensors"
    folder = sharded(checkpoint, tmp_path / "copy", name)
    encoders = [TransformerEncoder(folder, cache=each) for each in (tmp_path / "cache", None)]
    expected = TransformerEncoder(checkpoint).transform(TEXTS)
    np.testing.assert_array_equal(encoders[0].transform(TEXTS), expected)
    before = checkpoint_identity(folder)
    change_weights(folder, negate("pooler"), name)
    assert checkpoint_identity(folder).digest != before.digest
    for encoder in encoders:
        np.testing.assert_allclose(encoder.transform(TEXTS), -expected, atol=1e-6)


def test_links_to_files_elsewhere_are_followed(checkpoint, tmp_path):
    """The cache of the Hub consists of links; the linked files are part of the identity."""
    folder, blobs = tmp_path / "snapshot", shutil.copytree(checkpoint, tmp_path / "blobs")
    folder.mkdir()
    for file in blobs.iterdir():
        (folder / file.name).symlink_to(file)
    expected = TransformerEncoder(checkpoint).transform(TEXTS)
    np.testing.assert_array_equal(TransformerEncoder(folder).transform(TEXTS), expected)
    before = checkpoint_identity(folder)
    save_model(blobs, intermediate_size=32)
    assert checkpoint_identity(folder).digest != before.digest
    assert not np.allclose(TransformerEncoder(folder).transform(TEXTS), expected)


def test_files_that_are_missing_are_named(tmp_path, checkpoint):
    needed = {"config.json": "config.json", "model.safetensors": "safetensors"}
    for name, says in (needed | {"tokenizer.json": "a tokenizer"}).items():
        (tmp_path / "pytorch_model.bin").write_bytes(b"x")
        with pytest.raises(FileNotFoundError, match=f"folder without .*{says}"):
            TransformerEncoder(tmp_path).transform(TEXTS)
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "{"),
        ("config.json", {"id2label": ["a", "b", "c"]}),
        ("tokenizer.json", {"model": []}),
        ("modules.json", '[{"path": ""}]'),
        ("model.safetensors.index.json", '{"weight_map": []}'),
        ("shard.safetensors", "nonsense" * 20),
    ],
)
def test_damaged_files_are_one_error(bare, tmp_path, file, content):
    folder = sharded(bare, tmp_path / "copy", "shard.safetensors")
    if isinstance(content, dict):
        edit(folder, file, **content)
    else:
        (folder / file).write_text(content)
    with pytest.raises((OSError, ValueError)) as caught:
        TransformerEncoder(folder).transform(TEXTS)
    assert str(folder) in str(caught.value)
    if "id2label" in content:
        assert "must be an object" in str(caught.value)


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 90868373\n"
PAGE = "\n<!DOCTYPE html>\n<html><body>Please sign in</body></html>"
SUBSTITUTES = {"pointer": (POINTER, "a pointer of Git LFS.*git lfs pull")}
SUBSTITUTES |= {"page": (PAGE, "a web page.*download"), "empty": ("", "empty.*download")}


@pytest.mark.parametrize("substitute", SUBSTITUTES)
@pytest.mark.parametrize("file", ["shard.safetensors", "tokenizer.json", "config.json"])
def test_what_a_file_holds_in_place_of_its_content(file, substitute, checkpoint, tmp_path):
    content, says = SUBSTITUTES[substitute]
    folder = sharded(checkpoint, tmp_path / "copy", "shard.safetensors")
    (folder / file).write_text(content)
    calls = (
        lambda: TransformerEncoder(folder).transform(TEXTS),
        lambda: finetune_text_classifier(folder, TEXTS, [0, 1] * 4, tmp_path / "out", epochs=1),
    )
    for call in calls:
        with pytest.raises((OSError, ValueError), match=f"copy/{file} is {says}"):
            call()


def test_a_file_that_is_not_read_may_be_a_pointer(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "copy")
    (folder / "spiece.model").write_text(POINTER)
    expected = TransformerEncoder(checkpoint).transform(TEXTS)
    np.testing.assert_array_equal(TransformerEncoder(folder).transform(TEXTS), expected)
