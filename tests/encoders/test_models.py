"""The store of loaded models, downloads, and settings of the loaders."""

import shutil
import socket
from concurrent.futures import ThreadPoolExecutor

import huggingface_hub
import numpy as np
import pytest

from isoadapt.encoders import TransformerEncoder, _models, load_checkpoint, release
from isoadapt.encoders._texts import as_texts
from tests.encoders.changes import edit
from tests.tiny_models import TEXTS, save_model

pytestmark = pytest.mark.usefixtures("empty_store")


def test_two_models_are_kept_and_the_least_recently_used_is_removed(tmp_path, loads):
    folders = {name: save_model(tmp_path / name, num_hidden_layers=1) for name in "abc"}
    for name, loaded in [("a", "a"), ("b", "ab"), ("a", "ab"), ("c", "abc"), ("a", "abc")]:
        TransformerEncoder(folders[name]).transform(TEXTS)
        assert "".join(folder.name for folder in loads) == loaded
    TransformerEncoder(folders["b"]).transform(TEXTS)
    assert "".join(folder.name for folder in loads) == "abcb"


def test_one_load_for_heads_and_threads_and_each_dtype_until_released(checkpoint, loads):
    def embed(pooling):
        return TransformerEncoder(checkpoint, pooling=pooling).transform(TEXTS)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(embed, ["auto", "head_input", "mean", "cls"]))
    load_checkpoint(str(checkpoint))
    assert len(loads) == 1
    TransformerEncoder(checkpoint, dtype="bfloat16").transform(TEXTS)
    assert len(loads) == len(_models._STORE) == 2
    release()
    assert not _models._STORE
    TransformerEncoder(checkpoint).transform(TEXTS)
    assert len(loads) == 3


def test_weights_in_memory_outlive_their_file(tmp_path):
    encoder = TransformerEncoder(save_model(tmp_path))
    before, opened = encoder.transform(TEXTS), encoder.open()
    file = tmp_path / "model.safetensors"
    with file.open("r+b") as weights:
        weights.write(bytes(file.stat().st_size))
    np.testing.assert_array_equal(opened.encode(as_texts(TEXTS)), before)


def test_each_revision_is_downloaded_once_and_code_only_if_trusted(checkpoint, monkeypatch):
    downloads = []

    def download(name, *, revision, allow_patterns, **options):
        downloads.append((name, revision, "*.py" in allow_patterns, "*.bin" in allow_patterns))
        return checkpoint

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub, "snapshot_download", download)
        for options in 2 * [{}, {"revision": "v2"}, {"trust_remote_code": True}]:
            TransformerEncoder("some/name", **options).transform(TEXTS)
    expected = [(None, False), ("v2", False), (None, True)]
    assert downloads == [("some/name", *each, False) for each in expected]
    for name in ("nobody/no-such-model", "./no/such/folder"):
        with pytest.raises(OSError, match=name):
            TransformerEncoder(name).transform(TEXTS)


def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch):
    constants = "huggingface_hub.constants."
    with socket.create_server(("127.0.0.1", 0)) as hub:
        address = f"http://127.0.0.1:{hub.getsockname()[1]}"
        changes = {"HF_HUB_OFFLINE": False, "ENDPOINT": address, "HF_HUB_ETAG_TIMEOUT": 0.1}
        for name, value in changes.items():
            monkeypatch.setattr(constants + name, value)
        with pytest.raises(OSError, match=r"'some/model' is not a folder.*Timeout"):
            TransformerEncoder("some/model").transform(TEXTS)


def test_code_in_a_checkpoint_does_not_run(checkpoint, tmp_path):
    names = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    names["AutoModelForSequenceClassification"] = "evil.Model"
    folder = shutil.copytree(checkpoint, tmp_path / "copy")
    edit(folder, auto_map=names, model_type="evil")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ValueError, match="trust_remote_code"):
        TransformerEncoder(folder).transform(TEXTS)
    assert not (tmp_path / "ran").exists()
