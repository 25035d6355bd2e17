"""Texts and pairs from all containers, and messages for other input."""

from decimal import Decimal

import dask.bag
import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from isoadapt.encoders._texts import Texts, as_texts

TEXTS = ["one", "", "two"]
PAIRS = [("a", "b"), ("", "c"), ("a", "b")]


@pytest.mark.parametrize(
    "X",
    [
        TEXTS,
        tuple(TEXTS),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        list(np.array(TEXTS)),
        pd.Series(TEXTS, index=[7, 8, 9]),
        pl.Series(TEXTS),
        pd.DataFrame({"text": TEXTS}),
        pl.DataFrame({"text": TEXTS}),
        np.array(TEXTS, dtype=object)[:, None],
        np.array(TEXTS)[:, None],
        pd.DataFrame({"text": TEXTS}).to_numpy(),
        pd.Series(TEXTS, dtype="string"),
        pa.array(TEXTS),
        pa.chunked_array([TEXTS[:1], TEXTS[1:]]),
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS).dictionary_encode(),
        pa.table({"text": TEXTS}),
        pa.record_batch({"text": TEXTS}),
        datasets.Dataset.from_dict({"text": TEXTS}).with_format("torch"),
        datasets.Dataset.from_dict({"text": TEXTS}).with_format("numpy")["text"],
        pl.Series(TEXTS, dtype=pl.Categorical),
    ],
)
def test_texts_come_from_any_column(X):
    texts = as_texts(X)
    assert texts.first == TEXTS
    assert all(type(text) is str for text in texts.first)
    assert texts.second is None


@pytest.mark.parametrize(
    "X",
    [
        PAIRS,
        [list(pair) for pair in PAIRS],
        np.array(PAIRS),
        np.array(PAIRS, dtype=object),
        pd.DataFrame(PAIRS, columns=["x", "y"]),
        pl.DataFrame(PAIRS, schema=["x", "y"], orient="row"),
        pa.table({"x": ["a", "", "a"], "y": ["b", "c", "b"]}),
        datasets.Dataset.from_dict({"x": ["a", "", "a"], "y": ["b", "c", "b"]}),
    ],
)
def test_pairs_come_from_any_table(X):
    texts = as_texts(X)
    assert texts.first == ["a", "", "a"]
    assert texts.second == ["b", "c", "b"]


@pytest.mark.parametrize(
    ("X", "error", "says"),
    [
        ([], ValueError, "no text"),
        (datasets.Dataset.from_dict({"t": ["a", None]}), TypeError, r"X\[1\] is None, a missing"),
        (datasets.Dataset.from_dict({"t": ["a"], "y": [1]}), TypeError, "2 columns .*choose one"),
        (datasets.Dataset.from_dict({"t": ["a"]}).to_iterable_dataset(), TypeError, "X is a Iter"),
        (dask.bag.from_sequence(["a"]), TypeError, r"X is a Bag; pass X.compute\(\)"),
        (np.array([]), ValueError, "no text"),
        ("one text", TypeError, r"single str .*pass a list"),
        (b"bytes", TypeError, "single bytes"),
        (["a", None], TypeError, r"X\[1\] is None, a missing text"),
        ([None, "a"], TypeError, r"X\[0\] is None, a missing text"),
        (["a", "b", 3], TypeError, r"X\[2\] is a int \(3\), while X\[0\] is a text"),
        ([1, 2], TypeError, r"X\[0\] is a int"),
        (np.ones(3), TypeError, r"X\[0\] is a float"),
        (np.ones((3, 4)), TypeError, r"ndarray of shape \(3, 4\)"),
        (pd.Series(["a", float("nan")], dtype=object), TypeError, r"X\[1\] is nan, a missing"),
        (pl.Series(["a", None]), TypeError, r"X\[1\] is None, a missing"),
        ([("a", "b"), ("a",)], TypeError, r"X\[1\] has 1 elements; a pair of texts has 2"),
        ([("a", "b", "c")], TypeError, r"X\[0\] has 3 elements"),
        ([("a", "b"), "c"], TypeError, r"X\[1\] is a str \('c'\), while X\[0\] is a pair"),
        (["c", ("a", "b")], TypeError, r"X\[1\] is a tuple of 2, while X\[0\] is a text"),
        ([("a", "b"), ("a", None)], TypeError, r"X\[1\]\[1\] is None"),
        ([("a", "b"), (5, "c")], TypeError, r"X\[1\]\[0\] is a int"),
        (pd.DataFrame({"a": ["x"], "b": ["y"], "c": ["z"]}), TypeError, r"3 columns \(a, b, c\)"),
        (["a", pd.NA], TypeError, r"X\[1\] is <NA>, a missing text; drop it or replace it by ''"),
        ([pd.NA, "a"], TypeError, r"X\[0\] is <NA>, a missing"),
        ([("a", pd.NA)], TypeError, r"X\[0\]\[1\] is <NA>, a missing"),
        (["a", pd.NaT], TypeError, r"X\[1\] is NaT, a missing"),
        (pd.Series(["a", None], dtype="string"), TypeError, r"X\[1\] is <NA>, a missing"),
        (pd.DataFrame({"a": ["x", pd.NA]}, dtype=object), TypeError, r"X\[1\] is <NA>, a missing"),
        (pd.array(["a", pd.NA], dtype="string"), TypeError, r"X\[1\] is <NA>, a missing"),
        (pa.array(["a", None]), TypeError, r"X\[1\] is None, a missing"),
        (pa.table({"a": ["x", None]}), TypeError, r"X\[1\] is None, a missing"),
        (pa.table({c: ["x"] for c in "abc"}), TypeError, r"Table with 3 columns \(a, b, c\)"),
        (pa.array([1, 2]), TypeError, r"X\[0\] is a int \(1\)"),
        (pa.array([b"a"]), TypeError, r"X\[0\] is a bytes"),
        (
            ["a", np.array(["b", "c"])],
            TypeError,
            r"X\[1\] is a ndarray of 2, while X\[0\] is a text",
        ),
        (
            [row for _, row in pd.DataFrame({"a": ["x"], "b": ["y"]}).iterrows()],
            TypeError,
            r"X\[0\] is a Series .*two-column DataFrame",
        ),
        ([torch.tensor([1, 2])], TypeError, r"X\[0\] is a Tensor .*a list, array or Series"),
        (["a", np.array("a")], TypeError, r"X\[1\] is a ndarray .*while X\[0\] is a text"),
        ([np.array("a")], TypeError, r"X\[0\] is a ndarray .*a list, array or Series"),
        ([np.array([["a", "b"]])], TypeError, r"X\[0\] is a ndarray"),
        ([("a", "b"), ("a", np.array("b"))], TypeError, r"X\[1\]\[1\] is a ndarray"),
        ([Decimal("sNaN")], TypeError, r"X\[0\] is a Decimal"),
        (["a", np.float32("nan")], TypeError, r"X\[1\] is nan, a missing text"),
        ([np.datetime64("NaT")], TypeError, r"X\[0\] is NaT, a missing text"),
        (np.array([[1], [2]]), TypeError, r"X\[0\] is a int"),
        (np.empty((0, 1), dtype=object), ValueError, "no text"),
        (["a", "b \ud800"], ValueError, r"X\[1\] holds '\\ud800' at position 2, .* valid Unicode"),
        (np.array(["\udc80"], dtype=object), ValueError, r"X\[0\] holds .*surrogatepass"),
        ([("ä", "b"), ("a", "\udfff")], ValueError, r"X\[1\]\[1\] holds '\\udfff' at position 0"),
        ([("a\ud800", "b")], ValueError, r"X\[0\]\[0\] holds"),
        ({"a"}, TypeError, "X is a set"),
        ({"a": 1}, TypeError, "X is a dict"),
        (iter(["a"]), TypeError, "X is a list_iterator"),
        (None, TypeError, "X is a NoneType"),
        (3, TypeError, "X is a int"),
    ],
)
def test_other_input_is_named_in_the_error(X, error, says):
    with pytest.raises(error, match=says):
        as_texts(X)


def test_the_suggested_repair_of_surrogates_works():
    text = "a \ud83d\ude00 \ud800 ä"
    with pytest.raises(ValueError, match=r"text\.encode\('utf-16', 'surrogatepass'\)") as caught:
        as_texts([text])
    repaired = eval(str(caught.value).rpartition(" with ")[2], {"text": text})
    assert repaired == "a \U0001f600 \ufffd ä"
    assert as_texts([repaired, "ä"]).first == [repaired, "ä"]


def test_unique_and_its_inverse():
    texts, inverse = as_texts(["b", "a", "b"]).unique()
    assert texts.first == ["b", "a"]
    assert inverse.tolist() == [0, 1, 0]
    pairs, inverse = as_texts(PAIRS).unique()
    assert list(zip(pairs.first, pairs.second, strict=True)) == PAIRS[:2]
    assert inverse.tolist() == [0, 1, 0]


def test_lower_case_keeps_special_tokens_and_takes_each_character_alone():
    texts = Texts(["The CAT [SEP] ΟΔΟΣ", "[CLS]A"], ["B", "[MASK] C"])
    lowered = texts.lower(["[SEP]", "[CLS]", "[MASK]"])
    assert lowered.first == ["the cat [SEP] οδοσ", "[CLS]a"]
    assert lowered.second == ["b", "[MASK] c"]
