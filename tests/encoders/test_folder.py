"""Weights are only read from safetensors files inside the checkpoint's folder."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from isoadapt.encoders import TransformerEncoder, load_checkpoint
from isoadapt.encoders._identity import checkpoint_identity
from isoadapt.finetune import add_isobn, finetune_text_classifier
from tests.tiny_models import TEXTS, save_model


def sharded(checkpoint, folder, name, write=None):
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


OUTSIDE = ["../elsewhere/shard.safetensors", "sub/../../elsewhere/shard.safetensors", "absolute"]


def name_outside(name, tmp_path):
    return str(tmp_path / "elsewhere" / "shard.safetensors") if name == "absolute" else name


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("cached", [False, True])
def test_shards_outside_the_folder_are_refused(checkpoint, tmp_path, name, cached, loads):
    folder = sharded(checkpoint, tmp_path / "copy", name_outside(name, tmp_path))
    encoder = TransformerEncoder(folder, cache=tmp_path / "cache" if cached else None)
    with pytest.raises(ValueError, match=r"index\.json names '.*shard.*', which is not inside"):
        encoder.transform(TEXTS)
    assert not loads


def test_shards_that_can_run_code_are_refused(checkpoint, tmp_path, loads):
    folder = sharded(checkpoint, tmp_path / "copy", "pytorch_model-00001-of-00001.bin")
    for use in (load_checkpoint, lambda folder: TransformerEncoder(folder).transform(TEXTS)):
        with pytest.raises(ValueError, match=r"\.bin'; only safetensors files are read, because"):
            use(folder)
    assert not loads


@pytest.mark.parametrize("name", ["../weights.safetensors", "/weights.safetensors", "adapter.bin"])
def test_the_configuration_cannot_name_other_weights(checkpoint, tmp_path, name, loads):
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": name}))
    with pytest.raises(ValueError, match=r"config\.json names .*(not inside|only safetensors)"):
        TransformerEncoder(folder).transform(TEXTS)
    assert not loads


def test_other_functions_that_load_a_checkpoint_refuse_it(checkpoint, tmp_path):
    folder = sharded(checkpoint, tmp_path / "copy", "../elsewhere/shard.safetensors")
    with pytest.raises(ValueError, match="which is not inside"):
        finetune_text_classifier(folder, TEXTS, [0, 1] * 4, tmp_path / "out", epochs=1)
    save_file({"classifier.isobn.mean": torch.ones(2)}, folder / "model-x.safetensors")
    with pytest.raises(ValueError, match="which is not inside"):
        add_isobn(folder)


@pytest.mark.parametrize(
    "name", ["shard.safetensors", "sub/shard.safetensors", "a/b/c.safetensors"]
)
def test_shards_inside_the_folder_are_part_of_the_identity(checkpoint, tmp_path, name):
    folder = sharded(checkpoint, tmp_path / "copy", name)
    encoder = TransformerEncoder(folder, cache=tmp_path / "cache")
    expected = TransformerEncoder(checkpoint).transform(TEXTS)
    np.testing.assert_array_equal(encoder.transform(TEXTS), expected)
    weights = load_file(folder / name)
    weights["bert.pooler.dense.weight"].neg_()
    weights["bert.pooler.dense.bias"].neg_()
    before = checkpoint_identity(folder)
    save_file(weights, folder / name, metadata={"format": "pt"})
    assert checkpoint_identity(folder).digest != before.digest
    np.testing.assert_allclose(encoder.transform(TEXTS), -expected, atol=1e-6)
    uncached = TransformerEncoder(folder).transform(TEXTS)
    np.testing.assert_allclose(uncached, -expected, atol=1e-6)


def test_links_to_files_elsewhere_are_followed(checkpoint, tmp_path):
    """The cache of the Hub consists of links; the linked files are part of the identity."""
    folder, blobs = tmp_path / "snapshot", tmp_path / "blobs"
    shutil.copytree(checkpoint, blobs)
    folder.mkdir()
    for file in blobs.iterdir():
        (folder / file.name).symlink_to(file)
    expected = TransformerEncoder(checkpoint).transform(TEXTS)
    np.testing.assert_array_equal(TransformerEncoder(folder).transform(TEXTS), expected)
    before = checkpoint_identity(folder)
    save_model(blobs, intermediate_size=32)
    assert checkpoint_identity(folder).digest != before.digest
    assert not np.allclose(TransformerEncoder(folder).transform(TEXTS), expected)


@pytest.mark.parametrize("path", ["../other", "/other"])
def test_modules_outside_the_folder_are_refused(bare_checkpoint, tmp_path, path):
    folder = tmp_path / "sentence"
    folder.mkdir()
    kind = "sentence_transformers.models.Transformer"
    (folder / "modules.json").write_text(json.dumps([{"path": path, "type": kind}]))
    shutil.copytree(bare_checkpoint, tmp_path / "other")
    with pytest.raises(ValueError, match=rf"modules.json names '{path}', which is not inside"):
        TransformerEncoder(folder).transform(TEXTS)


def test_a_transformer_deep_in_a_sentence_folder_is_part_of_the_identity(bare_checkpoint, tmp_path):
    folder = tmp_path / "sentence"
    deep = folder / "a" / "b"
    shutil.copytree(bare_checkpoint, deep)
    kind = "sentence_transformers.models."
    modules = [
        {"path": "a/b", "type": kind + "Transformer"},
        {"path": "p", "type": kind + "Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    before = checkpoint_identity(folder)
    save_model(deep, kind="AutoModel", intermediate_size=32)
    assert checkpoint_identity(folder).digest != before.digest


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "[]"),
        ("modules.json", '{"path": ""}'),
        ("modules.json", '[{"path": ""}]'),
        ("model.safetensors.index.json", '{"weight_map": []}'),
    ],
)
def test_files_of_another_structure_are_damaged(bare_checkpoint, tmp_path, file, content):
    folder = sharded(bare_checkpoint, tmp_path / "copy", "shard.safetensors")
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=rf"{file} is damaged .*copy it again"):
        TransformerEncoder(folder).transform(TEXTS)
