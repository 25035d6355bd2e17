"""Whatever comes in chunks gives what one matrix gives, and never has to fit in memory."""

import tracemalloc
from collections import deque

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from torch.utils.data import DataLoader, TensorDataset

from isoadapt import (
    AllButTheTop,
    ClusterIsotropy,
    FlowAdapter,
    IsoBN,
    IsotropyLayer,
    LinearHead,
    LogitPreservingWhitening,
    Whitening,
)
from isoadapt.geometry import Moments, _chunks
from isoadapt.metrics import (
    anisotropy,
    cumulative_explained_variance,
    effective_rank,
    isoscore,
    isoscore_star,
    isotropy_report,
    mean_cosine_similarity,
    partition_dispersion,
    partition_isotropy,
    two_nn,
)

HEAD = LinearHead(np.eye(2, 6) + 0.1, [0.0, 0.0], [0, 1])
IN_CHUNKS = [
    Whitening(),
    Whitening("pca", shrinkage="oas", n_components=3),
    Whitening(head=HEAD, head_training="frozen"),
    LogitPreservingWhitening(HEAD),
    IsoBN(),
    AllButTheTop(),
]
AT_ONCE = [
    Whitening(shrinkage="ledoit-wolf"),
    Whitening(head="logistic"),
    Whitening(head=HEAD),
    LogitPreservingWhitening(),
    ClusterIsotropy(),
    IsotropyLayer(),
    FlowAdapter(),
]
STAR = [isoscore_star, lambda X: isoscore_star(X, np.diag(np.arange(1.0, 7.0)), zeta=0.7)]
COVARIANCE_METRICS = [
    *STAR,
    isoscore,
    lambda X: isoscore(X, bias_corrected=True),
    cumulative_explained_variance,
    lambda X: cumulative_explained_variance(X, k=1),
    anisotropy,
    lambda X: anisotropy(X, k=1),
    lambda X: anisotropy(X, k=1, center=True),
    effective_rank,
]
OTHER_METRICS = [
    mean_cosine_similarity,
    partition_isotropy,
    partition_dispersion,
    two_nn,
    isotropy_report,
]


class Loader:
    """Like a data loader: of known length, to be read any number of times."""

    def __init__(self, chunks):
        self.chunks = chunks

    def __len__(self):
        return len(self.chunks)

    def __iter__(self):
        return iter(self.chunks)


def make_rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6)) * [9, 2, 1, 1, 0.3, 0.1] + 5


X = pytest.fixture(scope="module", name="X")(make_rows)


@pytest.fixture(params=["generator", "list", "tuple", "loader", "tensors", "frames", "memmap"])
def chunked(request, X, tmp_path, monkeypatch):
    """Make the same rows come in chunks; a fresh iterator with each call."""
    monkeypatch.setattr(_chunks, "_ENTRIES", 70 * 6)
    parts = np.split(X, [1, 120, 120, 299])  # one of them empty
    np.save(tmp_path / "X.npy", X)
    return {
        "generator": lambda: (part for part in parts),
        "list": lambda: parts,
        "tuple": lambda: tuple(parts),
        "loader": lambda: Loader(parts),
        "tensors": lambda: [torch.tensor(part, requires_grad=True) for part in parts],
        "frames": lambda: map(pd.DataFrame, parts),
        "memmap": lambda: np.load(tmp_path / "X.npy", mmap_mode="r"),
    }[request.param]


def assert_same_map(ours, theirs):
    for left, right in zip(ours.to_affine(), theirs.to_affine(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9 * np.abs(right).max())


@pytest.mark.parametrize("adapter", IN_CHUNKS, ids=repr)
def test_adapters_fit_chunks_as_they_fit_the_matrix(adapter, chunked, X):
    fitted = clone(adapter).fit(chunked())
    assert_same_map(fitted, clone(adapter).fit(X))
    assert fitted.n_features_in_ == 6
    assert fitted.moments_.count == 300


@pytest.mark.parametrize("metric", COVARIANCE_METRICS)
def test_covariance_metrics_of_chunks_are_those_of_the_matrix(metric, chunked, X):
    found = metric(chunked())
    assert type(found) is float
    assert found == pytest.approx(metric(X), abs=1e-12)


def test_one_pass_of_moments_serves_metrics_and_adapters(X):
    moments = Moments().update(X)
    kept = moments.to_arrays()
    for metric in COVARIANCE_METRICS:
        assert metric(moments) == pytest.approx(metric(X), abs=1e-12)
    for adapter in IN_CHUNKS:
        fitted = clone(adapter).fit(moments)
        assert_same_map(fitted, clone(adapter).fit(X))
        fitted.partial_fit(X)
    for name, value in moments.to_arrays().items():
        np.testing.assert_array_equal(value, kept[name])
    adapter = Whitening().fit(moments)
    moments.update(X)
    assert adapter.moments_.count == 300


def test_fewer_rows_than_features():
    X = np.random.default_rng(0).normal(size=(9, 30))
    for metric in (isoscore, cumulative_explained_variance, anisotropy, effective_rank):
        assert metric(iter([X[:4], X[4:]])) == pytest.approx(metric(X), abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mean_far_beyond_the_spread_costs_no_digits(dtype):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(5000, 8)) * np.geomspace(1, 0.1, 8) + 1e4).astype(dtype)
    X[0] = 0  # nor does a row far from the others
    exact = X.astype(np.longdouble)
    exact = exact - exact.mean(0)
    exact = (exact.T @ exact / (len(X) - 1)).astype(np.float64)
    adapter = Whitening(shrinkage=1e-9).fit(np.array_split(X, 7))
    found = adapter.moments_.covariance().numpy()
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.eigvalsh(found)[0], np.linalg.eigvalsh(exact)[0], 1e-7)


def test_partial_fit_goes_on_after_chunks(X):
    gone_on = Whitening().fit(iter([X[:50], X[50:80]])).partial_fit(X[80:])
    assert_same_map(gone_on, Whitening().fit(X))


def test_each_chunk_is_asked_for_once_and_only_when_the_one_before_is_done(X):
    log = []

    def chunks():
        for number, part in enumerate(np.split(X, 3)):
            log.append(number)
            yield part

    Whitening().fit(chunks())
    isoscore(chunks())
    assert log == [0, 1, 2, 0, 1, 2]


def test_a_memory_map_of_any_dtype_is_never_held_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(_chunks, "_ENTRIES", 400 * 16)
    rows = np.random.default_rng(0).normal(size=(50_000, 16)).astype(np.float16)
    np.save(tmp_path / "X.npy", rows)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    for read in (Whitening().fit, isoscore, effective_rank):
        tracemalloc.start()
        read(mapped)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < rows.nbytes / 4  # float64 rows of one chunk: a 31st
    fitted = Whitening().fit(mapped)
    assert_same_map(fitted, Whitening().fit(rows.astype(np.float64)))
    Z = fitted.transform(mapped)
    assert (type(Z), Z.shape) == (np.ndarray, rows.shape)


def test_memory_maps_pass_as_matrices_where_all_rows_are_needed(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    y, weights = (X[:, 0] > 5).astype(int), np.arange(300.0)
    for adapter in (Whitening(shrinkage="ledoit-wolf"), Whitening(head="logistic")):
        assert_same_map(clone(adapter).fit(mapped, y), clone(adapter).fit(X, y))
    weighted = Whitening().fit(mapped, sample_weight=weights)
    assert_same_map(weighted, Whitening().fit(X, sample_weight=weights))
    assert two_nn(mapped) == two_nn(X)


def test_names_of_features_come_from_the_first_frame(X):
    names = [f"e{i}" for i in range(6)]
    for frame in (pd.DataFrame(X, columns=names), pl.DataFrame(X, schema=names)):
        assert list(Whitening().fit([frame[:100], frame[100:]]).feature_names_in_) == names
        with pytest.raises(ValueError, match="chunk 1: The feature names should match"):
            Whitening().fit([frame, frame[names[::-1]]])
    refitted = Whitening().fit(frame).fit(iter([X]))
    assert not hasattr(refitted, "feature_names_in_")


def nan_in(X, row):
    X = X.copy()
    X[row, 2] = np.nan
    return X


def used_up(X):
    chunks = iter([X])
    list(chunks)
    return chunks


BAD = [
    (lambda X: [], "Expected 2D array"),
    (lambda X: iter([]), "X gave no rows. An iterator is used up"),
    (used_up, "X gave no rows.*make a fresh one"),
    (lambda X: [X[:0]], "X gave no rows"),
    (lambda X: Moments(), "X gave no rows"),
    (lambda X: [X[:1]], r"1 row\(s\) in all its chunks together, while a minimum of 2"),
    (lambda X: [X, X[:, :4]], "chunk 1: X has (shape .300, 4.|4 features)"),
    (lambda X: np.split(nan_in(X, 250), 3), "chunk 2: Input X contains NaN"),
    (lambda X: iter([X, X[0]]), "chunk 1: Expected 2D array, got 1D"),
    (lambda X: [X[:, :1]], r"chunk 0: Found array with 1 feature\(s\)"),
    (lambda X: [np.full((9, 6), 0.1)] * 3, "X is constant: all 27 rows are equal"),
    (lambda X: Moments().update(nan_in(X, 0)), "X contains NaN"),
    (lambda X: [X, np.full((2, 6), "a")], "chunk 1: X holds 'a' in row 0, column 0"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_chunks_are_refused_and_leave_the_adapter_as_it_was(make, message, X):
    with pytest.raises(ValueError, match=message):
        isoscore(make(X))
    adapter = Whitening().fit(X)
    before = dict(vars(adapter))
    with pytest.raises(ValueError, match=message):
        adapter.fit(make(X))
    assert vars(adapter) == before


def test_a_bad_row_of_a_memory_map_is_named(X, tmp_path, monkeypatch):
    monkeypatch.setattr(_chunks, "_ENTRIES", 100 * 6)
    np.save(tmp_path / "X.npy", nan_in(X, 250))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    for read in (Whitening().fit, isoscore):
        with pytest.raises(ValueError, match="rows 200 to 299: Input X contains NaN"):
            read(mapped)


def test_constant_columns_are_taken_in_chunks_as_in_the_matrix(X):
    flat = np.where(np.arange(6) == 2, 0.1, X)
    for make in (lambda: np.split(flat, [7, 50]), lambda: Moments().update(flat)):
        for adapter in (Whitening(), IsoBN()):
            assert_same_map(clone(adapter).fit(make()), clone(adapter).fit(flat))


def test_a_constant_cloud_with_rounding_has_no_score():
    moments = Moments.from_arrays(
        {"count": np.array(9.0), "mean": np.ones(3), "scatter": 1e-33 * np.eye(3)}
    )
    with pytest.raises(ValueError, match="X is constant"):
        isoscore(moments)


def test_a_head_of_another_width_is_refused_before_all_is_read(X):
    def chunks():
        yield X[:, :5]
        raise AssertionError("the second chunk was asked for")

    with pytest.raises(ValueError, match="chunk 0: X has 5 features, but the head expects 6"):
        LogitPreservingWhitening(HEAD).fit(chunks())


@pytest.mark.parametrize("adapter", AT_ONCE, ids=repr)
def test_adapters_that_need_all_rows_say_so(adapter, X):
    y = np.arange(300) % 2
    cases = {
        "a list of matrices, but .*np.concatenate": [X[:100], X[100:]],
        "generator object.*, but .*np.concatenate": (part for part in [X]),
        r"Moments\(count=300.*, but .*the embeddings": Moments().update(X),
    }
    for message, chunks in cases.items():
        with pytest.raises(TypeError, match=message):
            clone(adapter).fit(chunks, y)


def test_what_an_adapter_could_do_with_chunks_is_said(X):
    with pytest.raises(TypeError, match="to fit chunk by chunk, use shrinkage='auto', 'oas'"):
        Whitening(shrinkage="ledoit-wolf").fit([X])
    with pytest.raises(
        TypeError, match="to fit chunk by chunk, use head=None or a frozen LinearHead"
    ):
        Whitening(head="logistic").fit([X], np.arange(300) % 2)


@pytest.mark.parametrize("metric", OTHER_METRICS)
def test_metrics_that_need_all_rows_say_so(metric, X):
    with pytest.raises(TypeError, match="this figure needs all rows at once: pass one matrix"):
        metric([X])


def test_what_takes_one_matrix_says_how_to_go_through_chunks(X):
    adapter = Whitening(head=HEAD, head_training="frozen").fit(X)
    for take in (adapter.transform, adapter.predict, adapter.decision_function):
        with pytest.raises(TypeError, match=r"adapter.transform\(chunk\) for chunk in chunks"):
            take(iter([X]))
    with pytest.raises(TypeError, match="partial_fit takes one chunk at a time"):
        adapter.partial_fit([X])
    with pytest.raises(ValueError, match=r"partial_fit\(chunk, sample_weight=...\)"):
        adapter.fit([X], sample_weight=np.ones(300))


@pytest.mark.parametrize(
    "matrix",
    [
        lambda X: X.tolist(),
        lambda X: list(X),
        lambda X: tuple(map(tuple, X)),
        lambda X: list(torch.tensor(X)),
        torch.tensor,
        pd.DataFrame,
        pl.DataFrame,
        np.asfortranarray,
    ],
)
def test_matrices_are_no_chunks(matrix, X):
    assert not _chunks.in_chunks(matrix(X))
    assert isoscore(matrix(X)) == pytest.approx(isoscore(X), abs=1e-14)


@pytest.mark.parametrize("other", [[], "text", b"bytes", {}, set(), None, 3.0, range(4), deque()])
def test_what_is_no_iterable_of_matrices_is_left_to_the_usual_checks(other):
    assert not _chunks.in_chunks(other)


def test_loaders_of_rows_with_labels_are_told_to_give_rows_only():
    X, y = torch.randn(6, 3), torch.arange(6)
    loader = DataLoader(TensorDataset(X, y), batch_size=2)
    for take in (isoscore, Whitening().fit):
        with pytest.raises(ValueError, match=r"chunk 0: a list of 2 arrays .*for X, y in loader"):
            take(loader)
    assert isoscore(rows for rows, _ in loader) == pytest.approx(isoscore(X))
