"""The store of loaded models, changed and damaged checkpoints, and settings of the loaders."""

import json
import logging as stdlib_logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import torch

from isoadapt.encoders import TransformerEncoder, _models, load_checkpoint, release
from isoadapt.encoders._models import quiet
from isoadapt.encoders._texts import as_texts
from tests.tiny_models import TEXTS, make_model, save_model


def test_one_load_for_encoders_heads_and_threads(checkpoint, loads):
    def embed(pooling):
        return TransformerEncoder(checkpoint, pooling=pooling).transform(TEXTS)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(embed, ["auto", "head_input", "mean", "cls"]))
    load_checkpoint(str(checkpoint))
    assert len(loads) == 1


def test_two_models_are_kept_and_the_least_recently_used_is_removed(tmp_path, loads):
    folders = [save_model(tmp_path / name) for name in "abc"]

    def use(i):
        TransformerEncoder(folders[i]).transform(TEXTS)
        return [folder.name for folder in loads]

    assert use(0) == ["a"]
    assert use(1) == ["a", "b"]
    assert use(0) == ["a", "b"]
    assert use(2) == ["a", "b", "c"]
    assert use(0) == ["a", "b", "c"]
    assert use(1) == ["a", "b", "c", "b"]


def test_dtype_is_part_of_the_key_and_release_forgets(checkpoint, loads):
    TransformerEncoder(checkpoint).transform(TEXTS)
    TransformerEncoder(checkpoint, dtype="bfloat16").transform(TEXTS)
    assert len(loads) == len(_models._STORE) == 2
    release()
    assert not _models._STORE
    TransformerEncoder(checkpoint).transform(TEXTS)
    assert len(loads) == 3


def test_changed_checkpoint_is_loaded_again(tmp_path):
    encoder = TransformerEncoder(save_model(tmp_path))
    before = encoder.transform(TEXTS)
    held = encoder._backbone().model.bert.pooler.dense.weight
    copy = held.clone()
    model = make_model()
    with torch.no_grad():
        model.bert.pooler.dense.weight.neg_()
        model.bert.pooler.dense.bias.neg_()
    model.save_pretrained(tmp_path)
    np.testing.assert_allclose(encoder.transform(TEXTS), -before, atol=1e-6)
    assert torch.equal(held, copy)


def test_weights_in_memory_outlive_their_file(tmp_path):
    encoder = TransformerEncoder(save_model(tmp_path))
    before, backbone = encoder.transform(TEXTS), encoder._backbone()
    file = tmp_path / "model.safetensors"
    with file.open("r+b") as weights:
        weights.write(bytes(file.stat().st_size))
    pooling = encoder._pooling(backbone)
    texts, inverse = as_texts(TEXTS).unique()
    vectors = encoder._encode(texts, backbone, pooling, progress=lambda rows: None)
    np.testing.assert_array_equal(vectors[inverse], before)


def test_a_folder_that_is_not_a_checkpoint(tmp_path, checkpoint):
    def use():
        TransformerEncoder(tmp_path).transform(TEXTS)

    with pytest.raises(FileNotFoundError, match=r"a folder without config.json; pass one made by"):
        use()
    shutil.copy(checkpoint / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"without weights \(\*.safetensors; other formats"):
        use()
    shutil.copy(checkpoint / "model.safetensors", tmp_path)
    with pytest.raises(FileNotFoundError, match="without a tokenizer"):
        use()
    (tmp_path / "config.json").write_text("{")
    with pytest.raises((OSError, ValueError), match=r"config.json is damaged"):
        use()


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"nonsense" * 20])
def test_damaged_weights_are_named(checkpoint, tmp_path, damage):
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(damage(weights.read_bytes()))
    with pytest.raises(OSError, match=r"model.safetensors is damaged .* copy it again"):
        TransformerEncoder(folder).transform(TEXTS)


@pytest.mark.parametrize("name", ["nobody/no-such-model", "./no/such/folder", "no such model"])
def test_a_name_that_cannot_be_downloaded(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match=r"is not a folder, .* pass a folder made by"):
        TransformerEncoder(name).transform(TEXTS)


def test_code_in_a_checkpoint_does_not_run(checkpoint, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    config = (folder / "config.json").read_text()
    auto = '"auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model", '
    auto += '"AutoModelForSequenceClassification": "evil.Model"}, "model_type": "evil", '
    config = config.replace('"model_type": "bert",', "").replace("{", "{" + auto, 1)
    (folder / "config.json").write_text(config)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ValueError, match="trust_remote_code"):
        TransformerEncoder(folder).transform(TEXTS)
    assert not (tmp_path / "ran").exists()


def test_loading_is_quiet_and_leaves_the_settings_of_transformers(
    checkpoint, tmp_path, monkeypatch, capfd
):
    from transformers import AutoModel
    from transformers.utils import logging

    monkeypatch.setattr(logging, "_tqdm_active", True)
    monkeypatch.setattr(logging._get_library_root_logger(), "level", 20)
    release()
    capfd.readouterr()
    TransformerEncoder(checkpoint).transform(TEXTS)
    assert capfd.readouterr() == ("", "")
    assert logging.get_verbosity() == 20
    AutoModel.from_pretrained(checkpoint).save_pretrained(tmp_path)
    assert "Writing model shards" in capfd.readouterr().err


@pytest.mark.parametrize("has_bars", [False, True])
def test_overlapping_threads_leave_the_settings_of_transformers(has_bars, monkeypatch):
    from transformers.utils import logging

    monkeypatch.setattr(logging, "_tqdm_active", has_bars)
    monkeypatch.setattr(logging._get_library_root_logger(), "level", 20)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(quiet())
        with ThreadPoolExecutor(1) as pool:
            pool.submit(second.enter_context, quiet()).result()
        first.close()
        assert logging.get_verbosity() == stdlib_logging.ERROR
        assert not logging.is_progress_bar_enabled()
    assert logging.get_verbosity() == 20
    assert logging.is_progress_bar_enabled() == has_bars


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"vocab_size": [16]}),
        ("config.json", {"id2label": ["a", "b", "c"]}),
        ("tokenizer_config.json", {"added_tokens_decoder": []}),
        ("tokenizer.json", {"model": []}),
    ],
)
def test_values_of_another_type_are_one_error(file, change, checkpoint, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    entries = json.loads((folder / file).read_text()) | change
    (folder / file).write_text(json.dumps(entries))
    with pytest.raises((OSError, ValueError)) as caught:
        load_checkpoint(folder)[0].transform(TEXTS)
    assert str(folder) in str(caught.value)
