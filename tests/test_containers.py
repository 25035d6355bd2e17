"""Matrices, labels and weights from any container give the results of plain arrays, or an error."""

import dask.bag
import dask.dataframe
import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GroupKFold

from isoadapt import ExactIsotropyLayer, LinearHead, TeacherReadout, Whitening, adapters, metrics
from isoadapt._utils.containers import as_matrix
from isoadapt.geometry import Moments, persistence_bars
from isoadapt.metrics import hubness, isoscore, isotropy_report
from isoadapt.model_selection import AdapterSearchCV
from tests.refusals import refusals
from tests.small_blocks import as_memmap

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
rng = np.random.default_rng(0)
# multiples of 1/8 below 16, which bfloat16 and float16 hold exactly
V = np.clip(rng.integers(-100, 100, size=(40, 4)).astype(np.float32) / 8, -10, 10)
V = torch.tensor(V).bfloat16().float().numpy()
ROWS, T = V.tolist(), torch.tensor(V)
FIXED = pa.FixedSizeListArray.from_arrays(pa.array(V.ravel()), 4)
Y = (V[:, 0] > 0).astype(int)
NAMES = np.where(Y, "yes", "no")


def objects(rows):
    return np.fromiter(rows, object, len(rows))


def without(values, row, value=None):
    return [*values[:row], value, *values[row + 1 :]]


class Relation:
    """What DuckDB gives: a table that NumPy and scikit-learn cannot read."""

    def __init__(self, frame):
        self.columns, self.shape, self.dtypes = [*frame.columns], frame.shape, ["FLOAT"] * 4
        self.df = frame.copy

    def __getitem__(self, name):
        raise TypeError("a relation is indexed by one column name")


DATASET = datasets.Dataset.from_dict({"id": range(40), "e": ROWS, "y": Y, "name": NAMES})
TWICE = pa.table([V[:, 0], V[:, 1], V[:, 2], V[:, 3]], names=["a", "a", "b", "c"])

VECTORS = {
    "tensors": list(T.bfloat16().requires_grad_()),
    "sparse tensor": T.to_sparse(),
    "nested tensor": torch.nested.nested_tensor(list(T), layout=torch.jagged),
    "masked tensor": torch.masked.masked_tensor(T, torch.ones_like(T, dtype=bool)),
    "masked array": np.ma.array(V, mask=False),
    "Series of arrays": pd.Series(list(V), index=range(9, 49)),
    "nullable table": pd.DataFrame(V, columns=list("abcd")).convert_dtypes(),
    "pandas with arrow lists": pd.Series(FIXED.to_pylist(), dtype=pd.ArrowDtype(FIXED.type)),
    "polars Array": pl.DataFrame({"e": list(V)}),
    "pyarrow fixed, cut": pa.concat_arrays([FIXED, FIXED])[40:],
    "pyarrow, columns of one name": TWICE,
    "relation": Relation(pd.DataFrame(V, columns=list("abcd"))),
    "Dataset": DATASET.with_format("torch", columns=["e"]),
    "Dataset column": DATASET.select(range(39, -1, -1)).select(range(39, -1, -1))["e"],
}


@pytest.mark.parametrize("kind", VECTORS)
def test_vectors_from_any_container(kind):
    X, adapter = VECTORS[kind], Whitening()
    np.testing.assert_array_equal(np.asarray(as_matrix(X), float), V)
    expected = Whitening().fit_transform(V)
    np.testing.assert_allclose(adapter.fit(X).transform(X), expected, atol=1e-5)
    head = LinearHead(np.eye(4), np.zeros(4), classes=list("abcd"))
    assert head.predict(X).tolist() == head.predict(V).tolist()
    assert isoscore(X) == pytest.approx(isoscore(V), abs=1e-9)
    assert hubness(X, k=3).skewness == pytest.approx(hubness(V, k=3).skewness, abs=1e-6)


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation")
def test_narrow_tensors_become_float32():
    quantised = torch.quantize_per_tensor(T, 0.125, 0, torch.qint32)
    for X in (T.to(torch.float8_e5m2), T.bfloat16(), quantised):
        expected = X.dequantize() if X.is_quantized else X.float()
        np.testing.assert_array_equal(as_matrix(X), expected.numpy())
        assert as_matrix(X).dtype == np.float32


def test_arrays_and_memory_maps_are_not_copied(tmp_path):
    for plain in (V, as_memmap(V, tmp_path), pd.DataFrame(V, columns=list("abcd"))):
        assert as_matrix(plain) is plain
    assert np.shares_memory(as_matrix(T), T.numpy())
    assert np.shares_memory(as_matrix(np.ma.array(V)), V)


WITH_NAN = np.where(np.arange(160).reshape(40, 4) == 30, np.nan, V)
DASK = dask.dataframe.from_pandas(pd.DataFrame(V, columns=list("abcd")), npartitions=2)
IS_MASKED = np.isnan(WITH_NAN)
MASKED = np.ma.array(np.where(IS_MASKED, -9999, V), mask=IS_MASKED)  # netCDF's fill value
MASKED_ROWS = np.ma.array(Y, mask=IS_MASKED.any(axis=1))
WITH_NA = np.where(IS_MASKED, pd.NA, V.astype(object))
RAGGED = torch.nested.nested_tensor([T[:2], T[:3], *T[:, None]], layout=torch.strided)
TWO_COLUMNS = {"id": list(range(40)), "e": ROWS}

REFUSED = [
    (without(ROWS, 3, [1.0]), "4 values in row 0 and 1 in row 3"),
    (pa.array(without(ROWS, 3, [1.0])), "4 values in row 0 and 1 in row 3"),
    (pd.Series(without(ROWS, 5)), "0 in row 5, None"),
    (pa.array(without(ROWS, 5)), "0 in row 5, None"),
    (pl.Series(without(ROWS, 5), dtype=pl.Array(pl.Float32, 4)), "NaN.*1 row.*in row 5"),
    (objects(without(ROWS, 5, 1.0)), "0 in row 5, 1.0"),
    (pd.DataFrame(TWO_COLUMNS), r"'id', 'e'.*X\['e'\]"),
    (DATASET.select_columns(["id", "e"]), r"'id', 'e'.*X\['e'\]"),
    (["a text"] * 40, "'a text'.*embed texts first"),
    ([row.tobytes() for row in V], "as bytes by np.frombuffer"),
    (pl.LazyFrame({"e": ROWS}), "collect a lazy one first"),
    (np.zeros((40, 5, 4)), "pool"),
    ({"e": ROWS}, "dict"),
    (dask.bag.from_sequence(ROWS), "Bag"),
    (DASK, r"X\.compute\(\)"),
    (pd.Series(list(WITH_NAN)), "NaN or infinite numbers in 1 row.*in row 7"),
    (pl.DataFrame({"e": WITH_NAN}), "NaN or infinite numbers.*in row 7"),
    (without(ROWS, 7, [1, 2, 3, np.inf]), "infinite numbers in 1 row.*in row 7"),
    (MASKED, "NaN or infinite numbers in 1 row.*in row 7"),
    (MASKED.astype(int), "NaN or infinite numbers in 1 row.*in row 7"),
    (list(MASKED), "NaN or infinite numbers in 1 row.*in row 7"),
    (pd.Series(list(MASKED)), "NaN or infinite numbers in 1 row.*in row 7"),
    (torch.masked.masked_tensor(T, torch.tensor(~IS_MASKED)), "NaN.* in 1 row.*in row 7"),
    (WITH_NA, "NaN or None.* in 1 row.*in row 7"),
    (pd.DataFrame(WITH_NA), "NaN or None.* in 1 row.*in row 7"),
    (RAGGED, "2 values in row 0 and 3 in row 1.*pool"),
]


@pytest.mark.parametrize(("X", "message"), REFUSED)
def test_what_holds_no_matrix_is_named(X, message):
    for call in (Whitening().fit, isoscore):
        with pytest.raises((TypeError, ValueError), match=message):
            call(X)


LABELS = {
    "objects": Y.astype(object),
    "row of a mixed table": pd.DataFrame({"t": NAMES, "y": Y}).astype(object).iloc[:, 1],
    "categorical": pd.Categorical(Y),
    "booleans": Y.astype(bool).astype(object),
    "pyarrow": pa.array(Y).dictionary_encode(),
    "Dataset column": DATASET.with_format("torch")["y"],
    "strings of polars": pl.Series(NAMES.tolist(), dtype=pl.Categorical),
    "strings of datasets": DATASET["name"],
    "dask array of unknown length": dask.dataframe.from_pandas(pd.Series(Y), npartitions=2).values,
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_from_any_container(kind):
    y, plain = LABELS[kind], NAMES if "strings" in kind else Y
    names = sorted(set(plain.tolist()))
    head = LinearHead([[0.0] * 4, [1.0, 0, 0, 0]], [0, 0], classes=names)
    assert head.score(V, y) == head.score(V, plain)
    fitted, expected = (ExactIsotropyLayer(head).fit(V, each) for each in (y, plain))
    np.testing.assert_array_equal(fitted.transform(V), expected.transform(V))
    reports = [isotropy_report(V, labels=each).labels for each in (y, plain)]
    assert [part.ev1 for part in reports[0].values()] == [p.ev1 for p in reports[1].values()]


test_labels_that_cannot_be_used_are_named = refusals(
    (without(Y.tolist(), 7), "first in row 7"),
    (without(Y.astype(float), 7, np.nan), "first in row 7"),
    (pa.array(without(NAMES.tolist(), 7)), "first in row 7"),
    (["a", 1] * 20, r"several types \(int, str\)"),
    (objects(["a", True] * 20), r"several types \(bool, str\)"),
    ([["a"], ["a", "b"]] * 20, "MultiLabelBinarizer"),
    ({"y": Y}, "y is a dict"),
    (DASK, r"y\.compute\(\)"),
    (MASKED_ROWS, "first in row 7"),
    (list(MASKED_ROWS), "first in row 7"),
    (np.ma.array(NAMES, mask=MASKED_ROWS.mask), "first in row 7"),
    (list(np.ma.array(NAMES, mask=MASKED_ROWS.mask)), "first in row 7"),
    (pd.Series(NAMES, dtype="string").mask(MASKED_ROWS.mask), "first in row 7"),
    call=lambda y: adapters.IsotropyLayer(max_epochs=1).fit(V, y),
    errors=(TypeError, ValueError),
)


def test_weights_groups_and_values_from_any_container():
    weights, groups = rng.integers(1, 4, size=40), np.arange(40) // 4
    expected = Whitening().fit(V, sample_weight=weights).transform(V)
    for given in (weights.astype(object), pl.Series(weights)):
        np.testing.assert_allclose(Whitening().fit(V, sample_weight=given).transform(V), expected)
    for given in (pa.array(groups), groups[:, None], pd.DataFrame({"g": groups.astype(str)})):
        assert isoscore(V, True, given) == pytest.approx(isoscore(V, True, groups), rel=1e-12)
    readout = TeacherReadout().fit(V, pd.Series(list(V[:, ::-1]))).transform(V)
    np.testing.assert_array_equal(readout, TeacherReadout().fit(V, V[:, ::-1]).transform(V))
    with pytest.raises(TypeError, match="groups"):
        isotropy_report(V, groups=1)
    with pytest.raises(ValueError, match="sample_weight"):
        Whitening().fit(V, sample_weight=["b"] * 40)


SEARCH = AdapterSearchCV(Whitening(head="logistic"), {"shrinkage": [0, 0.1]}, cv=GroupKFold(2))
TENTHS = 10 * np.arange(40) // 40
READERS = {  # of a matrix, and of a value of 0 or 1 for each row
    "chunks": lambda X, v: isoscore([V, X]),
    "dask": lambda X, v: isotropy_report(dask.array.from_array(X, chunks=(20, 4))).ev1,
    "weights": lambda X, v: Whitening().fit(V, sample_weight=v + 1).transform(V),
    "groups": lambda X, v: isoscore(V, True, 10 * v + TENTHS),
    "groups of a search": lambda X, v: clone(SEARCH).fit(V, Y, groups=10 * v + TENTHS).best_score_,
    "scores": lambda X, v: metrics.similarity_correlation(V, V[::-1], v),
    "relevant": lambda X, v: metrics.retrieval_report(V, V, list(v[:, None])).mrr,
    "bars": lambda X, v: persistence_bars(X),
    "moments": lambda X, v: Moments().update(X, v + 1).mean,
}


@pytest.mark.filterwarnings("ignore:.*could not be trained")
@pytest.mark.parametrize("reader", READERS)
def test_a_masked_entry_is_refused_and_a_mask_without_one_is_ignored(reader):
    found = READERS[reader](np.ma.array(V), np.ma.array(Y))
    np.testing.assert_array_equal(found, READERS[reader](V, Y))
    with pytest.raises((TypeError, ValueError), match=r"row 7|finite|must hold integers"):
        READERS[reader](MASKED, MASKED_ROWS)
    assert Moments().update(MASKED).mean.isnan().any()
