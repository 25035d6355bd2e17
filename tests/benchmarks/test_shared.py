"""What all benchmarks share: data, and the file of finished cells."""

import json

import numpy as np
import pytest

from benchmarks import _data
from benchmarks._data import load_unseen
from benchmarks._store import CellStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "cells.jsonl"


def store(path, fresh=False):
    return CellStore(path, ("key",), fresh)


def values(cells):
    return {key: line["value"] for (key,), line in cells.cells.items()}


def test_the_newest_cell_of_each_key_is_kept(path):
    cells = store(path)
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        cells.add({"key": key, "value": value})
    for found in (cells, store(path)):
        assert values(found) == {"a": 3, "b": 2}
    assert values(store(path, fresh=True)) == {}
    with pytest.raises(KeyError):
        cells.add({"value": 1})
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize("torn", [b'{"key": "b", "value": 2}', b"\xff"])
def test_a_torn_last_line_is_no_cell_and_is_cut_off_by_the_next(path, torn):
    store(path).add({"key": "a", "value": 1})
    with path.open("ab") as file:
        file.write(torn)
    before = path.read_bytes()
    cells = store(path)
    assert values(cells) == {"a": 1}
    assert path.read_bytes() == before, "a report must not write to the file of a run"
    cells.add({"key": "c", "value": 3})
    assert [json.loads(text)["key"] for text in path.read_text().splitlines()] == ["a", "c"]


def test_unseen_rows_are_those_of_all_splits_but_train_and_its_copies(monkeypatch, tmp_path):
    monkeypatch.setattr(_data, "shared_folder", lambda: tmp_path)
    (tmp_path / "embeddings").mkdir()
    E = np.random.default_rng(0).normal(size=(18, 3)).astype(np.float32)
    E[10] = E[7]
    arrays = {"E_train": E[:9], "E_dev": E[9:13], "E_test": E[13:]}
    labels = {"y_train": np.arange(9), "y_dev": np.arange(9, 13), "y_test": np.arange(13, 18)}
    np.savez(tmp_path / "embeddings" / "tiny.npz", **arrays, **labels)
    X, y = load_unseen("tiny")
    np.testing.assert_array_equal(y, [9, *range(11, 18)])
    np.testing.assert_array_equal(X, E[y])
