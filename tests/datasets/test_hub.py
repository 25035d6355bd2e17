"""load_hub: a data set's folder, or its name on the Hub, as texts and labels."""

import numpy as np
import pandas as pd
import pytest

from isoadapt.datasets import load_hub

datasets = pytest.importorskip("datasets")
PAIRS = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [1, 0], "idx": [0, 1]}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Read a data set of Parquet files, with the package's cache out of the user's."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)

    def load(splits, **options):
        (tmp_path / "data").mkdir(exist_ok=True)
        for name, columns in splits.items():
            pd.DataFrame(columns).to_parquet(tmp_path / "data" / f"{name}.parquet")
        return load_hub(tmp_path / "data", **options)

    return load


@pytest.fixture
def rows(monkeypatch):
    """Give the data set of these columns whatever is asked for; tells what was asked for."""

    def rows(columns, names=None):
        asked, made = [], datasets.Dataset.from_dict(columns)
        made = made.cast_column("label", datasets.ClassLabel(names=names)) if names else made
        answer = lambda *given, split: asked.append((*given, split)) or made  # noqa: E731
        monkeypatch.setattr(datasets, "load_dataset", answer)
        return asked

    return rows


def test_a_folder_of_splits(load):
    texts, labels = load({"train": PAIRS, "validation": PAIRS | {"label": [2, 2]}})
    assert (texts, labels.tolist()) == ([("a", "c"), ("b", "d")], [1, 0])
    texts, labels = load({}, split="validation", text="sentence2")
    assert (texts, labels.tolist()) == (["c", "d"], [2, 2])
    with pytest.raises(ValueError, match='Unknown split "test"'):
        load({}, split="test")


def test_a_task_of_glue_by_its_short_name(rows):
    asked = rows(PAIRS)
    assert load_hub("glue/mrpc", split="validation")[0] == [("a", "c"), ("b", "d")]
    assert asked == [("nyu-mll/glue", "mrpc", "validation")]


def test_labels_are_integers_or_floats_or_names(rows):
    for labels, names, dtype in (
        ([1, 0], ["bad", "good"], np.int64),
        ([-1, 1], None, np.int64),  # a target, not a missing class
        ([True, False], None, np.int64),
        ([0.5, 1.0], None, np.float64),
        (["x", "y"], None, "U1"),
    ):
        rows({"text": ["a", "b"], "label": labels}, names)
        texts, found = load_hub("any")
        assert (texts, found.tolist(), found.dtype) == (["a", "b"], labels, dtype)
    assert load_hub("any", text="text", label=None) == (["a", "b"], None)
    rows({"text": ["a", "b"]})
    assert load_hub("any") == (["a", "b"], None)


@pytest.mark.parametrize(
    ("columns", "names", "options", "message"),
    [
        (PAIRS | {"third": ["e", "f"]}, None, {}, "text="),
        (PAIRS, None, {"text": "sentence"}, "'sentence' is not.*'sentence1', 'sentence2'"),
        (PAIRS | {"label": [-1, -1]}, None, {}, "in 2 of 2 rows"),
        (PAIRS | {"label": [-1, 1]}, ["no", "yes"], {}, "in 1 of 2 rows"),
        (PAIRS | {"label": [None, None]}, None, {}, "row 0: column 'label' is empty"),
        (PAIRS | {"label": [[1], [2]]}, None, {}, r"row 0: column 'label' holds"),
        (PAIRS | {"label": [1.0, np.inf]}, None, {}, "row 1: column 'label' is not finite"),
    ],
)
def test_columns_and_labels_that_cannot_be(columns, names, options, message, rows):
    rows(columns, names)
    with pytest.raises(ValueError, match=message):
        load_hub("any", **options)
