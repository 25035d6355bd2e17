"""Texts and pairs from all containers, and messages for other input."""

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from isoadapt.encoders._texts import as_texts
from tests.refusals import refusals

TEXTS = ["one", "", "two"]
PAIRS = [("a", "b"), ("", "c"), ("a", "b")]
COLUMNS = {"x": ["a", "", "a"], "y": ["b", "c", "b"]}


@pytest.mark.parametrize(
    "X",
    [
        TEXTS,
        np.array(TEXTS),
        np.array(TEXTS, dtype=object)[:, None],
        pd.Series(TEXTS, index=[7, 8, 9]),
        pl.Series(TEXTS, dtype=pl.Categorical),
        pa.array(TEXTS).dictionary_encode(),
        pa.table({"text": TEXTS}),
        datasets.Dataset.from_dict({"text": TEXTS}).with_format("numpy")["text"],
    ],
)
def test_texts_come_from_any_column(X):
    texts = as_texts(X)
    assert texts.first == TEXTS
    assert {*map(type, texts.first)} == {str}
    assert texts.second is None


@pytest.mark.parametrize(
    "X",
    [
        PAIRS,
        np.array(PAIRS),
        pd.DataFrame(COLUMNS),
        pl.DataFrame(COLUMNS),
        pa.table(COLUMNS),
        datasets.Dataset.from_dict(COLUMNS),
    ],
)
def test_pairs_come_from_any_table(X):
    texts = as_texts(X)
    assert texts.first == COLUMNS["x"]
    assert texts.second == COLUMNS["y"]


test_other_input_is_named_in_the_error = refusals(
    ([], "no text", ValueError),
    ("one text", "X is a str; pass a list"),
    ({"a": 1}, "dict"),
    (np.ones((3, 4)), r"shape \(3, 4\)"),
    (pd.DataFrame({c: ["x"] for c in "abc"}), "columns 'a', 'b', 'c'"),
    (["a", None], r"X\[1\] is None, a missing"),
    (pa.table({"a": ["x", None]}), r"X\[1\] is (None|nan), a missing"),
    (["a", "b", 3], r"X\[2\] is a int"),
    (["c", ("a", "b")], r"X\[1\] is a tuple of 2"),
    ([("a", "b"), "c"], r"X\[1\] is a str"),
    ([("a", "b"), ("a",)], r"X\[1\] is a tuple of 1"),
    ([("a", "b"), (5, "c")], r"X\[1\]\[0\] is a int"),
    ([("ä", "b"), ("a", "\udfff")], r"X\[1\]\[1\] holds '\\udfff' at position 0", ValueError),
    call=as_texts,
    errors=TypeError,
)
