"""Matrices, labels and weights from any container give the results of plain arrays, or an error."""

import collections
from decimal import Decimal

import dask.bag
import dask.dataframe
import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from numpy.lib.recfunctions import unstructured_to_structured

from isoadapt import IsotropyLayer, LinearHead, TeacherReadout, Whitening
from isoadapt._utils.containers import as_matrix, as_values
from isoadapt.metrics import hubness, isoscore, isotropy_report, similarity_correlation
from isoadapt.model_selection import compare_adapters

rng = np.random.default_rng(0)
# multiples of 1/8 below 16, which bfloat16 and float16 hold exactly
V = rng.integers(-100, 100, size=(40, 4)).astype(np.float32) / 8
V[:, 0] = np.clip(V[:, 0], -10, 10)
V = torch.tensor(V).bfloat16().float().numpy()
ROWS, T = V.tolist(), torch.tensor(V)
FIXED = pa.FixedSizeListArray.from_arrays(pa.array(V.ravel()), 4)
Y = (V[:, 0] > 0).astype(int)
NAMES = np.where(Y, "yes", "no")


def objects(rows):
    return np.fromiter(rows, object, len(rows))


def without(values, row, value=None):
    return [*values[:row], value, *values[row + 1 :]]


DATASET = datasets.Dataset.from_dict({"id": range(40), "e": ROWS, "y": Y, "name": NAMES})

VECTORS = {
    "objects": V.astype(object),
    "decimals": [[Decimal(each) for each in row] for row in ROWS],
    "column of objects": objects(V)[:, None],
    "tensors": list(T.bfloat16().requires_grad_()),
    "Series of arrays": pd.Series(list(V), index=range(9, 49)),
    "Series of lists": pd.Series(ROWS),
    "Series of tensors": pd.Series(list(T)),
    "one-column table": pd.DataFrame({"e": list(V)}),
    "nullable table": pd.DataFrame(V, columns=list("abcd")).convert_dtypes(),
    "pandas with arrow lists": pd.Series(FIXED.to_pylist(), dtype=pd.ArrowDtype(FIXED.type)),
    "polars List": pl.Series(ROWS, dtype=pl.List(pl.Float32)),
    "polars Array": pl.DataFrame({"e": list(V)}),
    "pyarrow list": pa.chunked_array([pa.array(ROWS[:9]), pa.array(ROWS[9:])]),
    "pyarrow fixed, cut": pa.concat_arrays([FIXED, FIXED])[40:],
    "pyarrow numbers": pa.record_batch(list(map(pa.array, V.T.copy())), names=list("abcd")),
    "Dataset": DATASET.with_format("torch", columns=["e"]),
    "Dataset column": DATASET.select(range(39, -1, -1)).select(range(39, -1, -1))["e"],
    "unmasked": np.ma.array(V),
    "bfloat16": T.bfloat16(),
    "deque": collections.deque(ROWS),
}


@pytest.mark.filterwarnings("ignore:.*is less than .* = 3")
@pytest.mark.parametrize("kind", VECTORS)
def test_vectors_from_any_container(kind):
    X, adapter = VECTORS[kind], Whitening()
    np.testing.assert_array_equal(np.asarray(as_matrix(X), float), V)
    expected = Whitening().fit_transform(V)
    np.testing.assert_allclose(adapter.fit(X).transform(X), expected, atol=1e-5)
    np.testing.assert_allclose(adapter.inverse_transform(VECTORS[kind]).shape, V.shape)
    head = LinearHead(np.eye(4), np.zeros(4), classes=list("abcd"))
    assert head.predict(X).tolist() == head.predict(V).tolist()
    assert isoscore(X) == pytest.approx(isoscore(V), abs=1e-9)
    assert isotropy_report(X, labels=Y).ev1 == pytest.approx(isotropy_report(V).ev1, abs=1e-9)
    assert hubness(X, k=3).skewness == pytest.approx(hubness(V, k=3).skewness, abs=1e-6)
    assert similarity_correlation(X, V[::-1], range(40)) == pytest.approx(
        similarity_correlation(V, V[::-1], range(40)), abs=1e-9
    )


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation")
@pytest.mark.parametrize("kind", ["float8", "quantised"])
def test_narrow_tensors_become_float32(kind):
    X = T.to(torch.float8_e5m2)
    if kind == "quantised":
        X = torch.quantize_per_tensor(T, 0.125, 0, torch.qint32)
    expected = X.dequantize() if X.is_quantized else X.float()
    np.testing.assert_array_equal(as_matrix(X), expected.numpy())
    assert as_matrix(X).dtype == np.float32
    Whitening().fit(X)


def test_arrays_and_memory_maps_are_not_copied(tmp_path):
    np.save(tmp_path / "V.npy", V)
    mapped = np.load(tmp_path / "V.npy", mmap_mode="r")
    frame = pd.DataFrame(V, columns=list("abcd"))
    assert as_matrix(V) is V
    assert as_matrix(mapped) is mapped
    assert as_matrix(frame) is frame
    assert np.shares_memory(as_matrix(T), T.numpy())
    assert Whitening().fit(frame).feature_names_in_.tolist() == list("abcd")


WITH_NAN = np.where(np.arange(160).reshape(40, 4) == 30, np.nan, V)
DASK = dask.dataframe.from_pandas(pd.DataFrame(V, columns=list("abcd")), npartitions=2)


def two_columns(make):
    return make({"id": list(range(40)), "e": ROWS})


REFUSED = {
    "ragged lists": (without(ROWS, 3, [1.0]), "different lengths, 4 in row 0 and 1 in row 3"),
    "ragged tensors": ([*T[:3], T[0, :2], *T[4:]], "different lengths, 4 in row 0 and 2 in row 3"),
    "ragged arrow": (pa.array(without(ROWS, 3, [1.0])), "4 in row 0 and 1 in row 3"),
    "no vector": (
        pd.Series(without(ROWS, 5)),
        "Input X contains NaN or None instead of a vector in 1 row.*first in row 5",
    ),
    "null": (
        pa.array(without(ROWS, 5)),
        "Input X contains NaN or None instead of a vector in 1 row.*first in row 5",
    ),
    "null of polars": (pl.Series(without(ROWS, 5), dtype=pl.Array(pl.Float32, 4)), "in row 5"),
    "a number": (objects(without(ROWS, 5, 1.0)), "one vector for each row, but row 5 holds 1.0"),
    "masked": (np.ma.masked_equal(V, V[7, 2]), "X contains NaN or None instead of an unmasked"),
    "id and vectors": (two_columns(pd.DataFrame), r"columns 'id', 'e'.*choose .*X\['e'\]"),
    "polars": (two_columns(pl.DataFrame), r"columns 'id', 'e'.*choose .*X\['e'\]"),
    "Dataset": (DATASET.select_columns(["id", "e"]), r"columns 'id', 'e'.*choose .*X\['e'\]"),
    "texts": (["a text"] * 40, "X holds 'a text' in row 0.*embed texts"),
    "vectors as texts": (pd.Series(list(map(str, ROWS))), "in row 0.*json.loads"),
    "tokens": (np.zeros((40, 5, 4)), r"dim 3, shape \(40, 5, 4\).*pool"),
    "a mapping": ({"e": ROWS}, "X is a dict, but rows are needed"),
    "a stream": (DATASET.to_iterable_dataset(), "chunk 0: X is a dict"),
    "a bag": (dask.bag.from_sequence(ROWS), "X is a Bag, but rows are needed"),
    "dask": (DASK, r"X\.compute\(\)"),
    "sparse": (T.to_sparse(), r"X is a tensor \(torch.sparse_coo\).*to_dense"),
    "nested": (
        torch.nested.nested_tensor([T[0], T[0, :2]], layout=torch.jagged),
        r"X is a tensor \(nested\).*one vector",
    ),
    "NaN in a vector": (pd.Series(list(WITH_NAN)), "NaN or infinite numbers in 1 row.*in row 7"),
    "NaN in a column": (pl.DataFrame({"e": WITH_NAN}), "NaN or infinite numbers.*in row 7"),
    "null in a vector": (pa.array(without(ROWS, 7, [1, 2, 3, None])), "NaN or inf.*in row 7"),
    "infinity in a vector": (without(ROWS, 7, [1, 2, 3, np.inf]), "infinity in 1 row.*in row 7"),
    "meta": (T.to("meta"), r"X is a tensor \(without values\)"),
    "records": (unstructured_to_structured(V), "structured_to_unstructured"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_holds_no_matrix_is_named(kind):
    X, message = REFUSED[kind]
    calls = [Whitening().fit]
    if kind in ("nested", "dask"):
        calls += [IsotropyLayer(head=None).fit, isoscore, lambda X: compare_adapters(X, Y)]
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=message):
            call(X)


LABELS = {
    "objects": Y.astype(object),
    "integers of two kinds": [
        each if i % 2 else np.int64(each) for i, each in enumerate(Y.tolist())
    ],
    "Series of objects": pd.Series(Y.tolist(), dtype=object),
    "row of a mixed table": pd.DataFrame({"t": NAMES, "y": Y}).astype(object).iloc[:, 1],
    "nullable": pd.array(Y, dtype="Int64"),
    "categorical": pd.Categorical(Y),
    "booleans": Y.astype(bool).astype(object),
    "floats": pd.array(Y.astype(float), dtype="Float64"),
    "decimals": list(map(Decimal, Y.tolist())),
    "polars": pl.Series(Y),
    "pyarrow": pa.array(Y).dictionary_encode(),
    "Dataset column": DATASET.with_format("torch")["y"],
    "tensors": list(torch.tensor(Y)),
    "bfloat16": torch.tensor(Y).bfloat16(),
    "strings": pd.Series(NAMES, dtype="string[pyarrow]"),
    "strings of polars": pl.Series(NAMES.tolist(), dtype=pl.Categorical),
    "strings of datasets": DATASET["name"],
    "dask": dask.dataframe.from_pandas(pd.Series(Y), npartitions=2),
    "dask array of unknown length": dask.dataframe.from_pandas(pd.Series(Y), npartitions=2).values,
    "integers of 64 bits": [2**63 + int(each) for each in Y],
    "variable strings": NAMES.astype(np.dtypes.StringDType()),
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.usefixtures("fixed_penalty")
def test_labels_from_any_container(kind):
    y = LABELS[kind]
    plain = NAMES if "strings" in kind else Y
    if kind == "integers of 64 bits":
        plain = Y.astype(np.uint64) + np.uint64(2**63)
    names = sorted(set(plain.tolist()))
    head = LinearHead([[0.0] * 4, [1.0, 0, 0, 0]], [0, 0], classes=names)
    adapter = IsotropyLayer(head, max_epochs=1, random_state=0)
    assert adapter.fit(V, y).score(V, y) == adapter.fit(V, plain).score(V, plain)
    assert head.score(V, y) == head.score(V, plain)
    assert Whitening(head="logistic").fit(V, y).predict(V).tolist() == (
        Whitening(head="logistic").fit(V, plain).predict(V).tolist()
    )
    report = isotropy_report(V, labels=y)
    assert report.to_dict()["isoscore"] == isotropy_report(V, labels=plain).to_dict()["isoscore"]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (without(Y.tolist(), 7), "Input y contains NaN or None.*first in row 7"),
        (without(Y.astype(float), 7, np.nan), "Input y contains NaN or None.*first in row 7"),
        (without(NAMES.tolist(), 7, np.nan), "Input y contains NaN or None.*first in row 7"),
        (pd.array(without(Y.tolist(), 7), dtype="Int64"), "first in row 7"),
        (pa.array(without(NAMES.tolist(), 7)), "first in row 7"),
        (["a", 1] * 20, r"y holds values of several types \(int, str\).*list\(map\(str"),
        (objects(["a", True] * 20), r"y holds values of several types \(bool, str\)"),
        ([["a"], ["a", "b"]] * 20, "different lengths.*MultiLabelBinarizer"),
        ({"y": Y}, "y is a dict, but rows are needed"),
        (1, "y is a int, but rows are needed"),
        (torch.tensor(1), "y is a ndarray, but rows are needed"),
        (
            torch.nested.nested_tensor([T[0], T[0, :2]], layout=torch.jagged),
            r"y is a tensor \(nested\)",
        ),
        (DASK, r"y\.compute\(\)"),
        (V[:, None, :], r"y has shape \(40, 1, 4\)"),
    ],
)
def test_labels_that_cannot_be_used_are_named(y, message):
    for fit in (Whitening(head="logistic").fit, IsotropyLayer(max_epochs=1).fit):
        with pytest.raises((TypeError, ValueError), match=message):
            fit(V, y)


def test_weights_groups_and_values_from_any_container():
    weights = rng.integers(1, 4, size=40)
    groups = np.arange(40) // 4
    expected = Whitening().fit(V, sample_weight=weights).transform(V)
    for given in (weights.astype(object), pl.Series(weights), torch.tensor(weights).bfloat16()):
        np.testing.assert_allclose(Whitening().fit(V, sample_weight=given).transform(V), expected)
    assert isoscore(V, True, pa.array(groups)) == isoscore(V, True, groups)
    layer = IsotropyLayer(max_epochs=1, random_state=0)
    by_name = layer.fit(V, Y, groups=pd.DataFrame({"g": groups.astype(str)})).transform(V)
    np.testing.assert_array_equal(by_name, layer.fit(V, Y, groups=groups).transform(V))
    one_column = groups[:, None]
    assert isoscore(V, True, one_column) == isoscore(V, True, groups)
    for call in (
        lambda g: isoscore(V, True, g),
        lambda g: isotropy_report(V, groups=g),
        lambda g: layer.fit(V, Y, groups=g),
        lambda g: compare_adapters(V, Y, groups=g),
    ):
        with pytest.raises(TypeError, match="groups is a int, but rows are needed"):
            call(1)
    with pytest.raises(ValueError, match="sample_weight holds 'b' in row 0"):
        Whitening().fit(V, sample_weight=["b"] * 40)
    ridge = Whitening(head="ridge").fit(V, list(map(Decimal, Y.tolist()))).predict(V)
    np.testing.assert_array_equal(ridge, Whitening(head="ridge").fit(V, Y).predict(V))
    assert as_values(pd.DataFrame({"a": Y, "b": Y}, dtype=object)).dtype == np.int64
    readout = TeacherReadout().fit(V, pd.Series(list(V[:, ::-1]))).transform(V)
    np.testing.assert_array_equal(readout, TeacherReadout().fit(V, V[:, ::-1]).transform(V))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("fixed_penalty")
def test_a_comparison_of_columns():
    options = {"adapters": ["whitening"], "cv": 2, "random_state": 0, "encoder_saw": False}
    expected = compare_adapters(V, Y, **options).to_frame()
    found = compare_adapters(pd.Series(list(V)), Y.astype(object), **options).to_frame()
    seconds = [name for name in expected if name.endswith("seconds")]
    pd.testing.assert_frame_equal(found.drop(columns=seconds), expected.drop(columns=seconds))


def test_columns_of_one_name_are_all_read():
    table = pa.table([V[:, 0], V[:, 1], V[:, 2]], names=["a", "a", "b"])
    np.testing.assert_array_equal(as_matrix(table), V[:, :3])
    frame = pd.DataFrame(V, columns=list("aabc"))
    for each in (frame, frame.convert_dtypes(), frame.astype(object)):
        np.testing.assert_array_equal(as_matrix(each), V)
        found = Whitening().fit(each).transform(each)
        np.testing.assert_allclose(found, Whitening().fit_transform(V), atol=1e-6)
