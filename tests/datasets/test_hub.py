"""load_hub: a data set's folder, or its name on the Hub, as texts and labels."""

import numpy as np
import pandas as pd
import pytest

from isoadapt.datasets import load_hub


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep the package's cache out of the user's."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def write(folder, **splits):
    folder.mkdir()
    for name, columns in splits.items():
        pd.DataFrame(columns).to_parquet(folder / f"{name}-00000-of-00001.parquet")
    return folder


PAIRS = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [1, 0], "idx": [0, 1]}


def test_texts_and_labels_of_a_split(tmp_path):
    single = {"sentence": ["He sings.", "Him sings."], "label": [1, 0], "idx": [0, 1]}
    folder = write(tmp_path / "cola", train=single, validation={**single, "label": [0, 0]})
    texts, labels = load_hub(folder)
    assert texts == ["He sings.", "Him sings."]
    np.testing.assert_array_equal(labels, [1, 0])
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(load_hub(folder, split="validation")[1], [0, 0])


def test_pairs(tmp_path):
    texts, _ = load_hub(write(tmp_path / "mrpc", train=PAIRS))
    assert texts == [("a", "c"), ("b", "d")]
    texts, _ = load_hub(write(tmp_path / "other", train=PAIRS), text="sentence2")
    assert texts == ["c", "d"]


def test_classes_by_number_and_floats_and_names(tmp_path):
    from datasets import ClassLabel, Dataset, DatasetDict

    folder = tmp_path / "classes"
    rows = Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]})
    rows = rows.cast_column("label", ClassLabel(names=["bad", "good"]))
    DatasetDict({"train": rows})["train"].to_parquet(folder / "train.parquet")
    np.testing.assert_array_equal(load_hub(folder)[1], [1, 0])
    for labels, dtype in (([0.5, 1.0], np.float64), (["x", "y"], np.str_)):
        source = write(tmp_path / dtype.__name__, train={"text": ["a", "b"], "label": labels})
        found = load_hub(source, text="text")[1]
        assert found.tolist() == labels
        assert np.issubdtype(found.dtype, dtype)


def test_without_labels(tmp_path):
    folder = write(tmp_path / "bare", train={"text": ["a", "b"]})
    assert load_hub(folder) == (["a", "b"], None)
    assert load_hub(write(tmp_path / "pairs", train=PAIRS), label=None)[1] is None


def test_a_task_of_glue_by_its_short_name(monkeypatch):
    import datasets

    asked = []

    def load(path, name, split):
        asked.append((path, name, split))
        return datasets.Dataset.from_dict(PAIRS)

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert load_hub("glue/mrpc", split="validation")[0] == [("a", "c"), ("b", "d")]
    assert asked == [("nyu-mll/glue", "mrpc", "validation")]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (PAIRS | {"third": ["e", "f"]}, {}, "which hold the texts"),
        (PAIRS, {"text": "sentence"}, "'sentence' is not a column"),
        (PAIRS, {"label": "class"}, "label='class' is not a column"),
        (PAIRS | {"label": [-1, -1]}, {}, "missing or hidden, in 2 of 2 rows"),
    ],
)
def test_columns_that_cannot_be(tmp_path, columns, options, message):
    with pytest.raises(ValueError, match=message):
        load_hub(write(tmp_path / "data", train=columns), **options)


def test_negative_integers_are_targets_unless_they_number_classes(monkeypatch):
    import datasets

    rows = datasets.Dataset.from_dict(PAIRS | {"label": [-1, 1]})
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: rows)
    assert load_hub("anything")[1].tolist() == [-1, 1]
    rows = rows.cast_column("label", datasets.ClassLabel(names=["no", "yes"]))
    with pytest.raises(ValueError, match="missing or hidden, in 1 of 2 rows"):
        load_hub("anything")


def test_what_cannot_be_had(tmp_path):
    folder = write(tmp_path / "data", train=PAIRS)
    with pytest.raises(OSError, match=r"split='test' cannot be loaded .*check the names"):
        load_hub(folder, split="test")
    with pytest.raises(OSError, match=r"no-such/thing.*cannot be loaded"):
        load_hub("no-such/thing")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, "the label None"),
        ([1], r"the label \[1\]"),
        (np.inf, "the label inf"),
        (b"x", "b'x'"),
    ],
)
def test_labels_that_are_none(label, message, tmp_path):
    folder = write(tmp_path / "odd", train={"text": ["a"] * 3, "label": [label] * 3})
    with pytest.raises(ValueError, match=message):
        load_hub(folder, text="text")


@pytest.mark.parametrize("name", ["train.parquet", "train.csv", "train.json"])
def test_a_damaged_file(name, tmp_path):
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / name).write_bytes(b"PAR1\xff\xfe")
    with pytest.raises(OSError, match=r"cannot be loaded \((?!An error occurred)"):
        load_hub(tmp_path / "odd")
