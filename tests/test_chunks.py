"""Whatever comes in chunks, or as a dask array, gives what one matrix gives, in little memory."""

import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from torch.utils.data import DataLoader

from isoadapt import LinearHead, Whitening, adapters, metrics
from isoadapt.geometry import Moments
from tests.small_blocks import as_memmap, small_blocks

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

HEAD = LinearHead(np.eye(2, 6) + 0.1, [0.0, 0.0], [0, 1])
IN_CHUNKS = [Whitening(), Whitening("pca", shrinkage="oas", n_components=3)]
IN_CHUNKS += [Whitening(shrinkage="ledoit-wolf"), Whitening(head=HEAD, head_training="frozen")]
IN_CHUNKS += [adapters.LogitPreservingWhitening(HEAD), adapters.IsoBN(), adapters.AllButTheTop()]
AT_ONCE = [Whitening(head="logistic"), adapters.FlowAdapter()]
COVARIANCE_METRICS = [
    lambda X: metrics.isoscore_star(X, np.diag(np.arange(1.0, 7.0)), zeta=0.7),
    metrics.isoscore,
    lambda X: metrics.isoscore(X, bias_corrected=True),
    metrics.cumulative_explained_variance,
    metrics.anisotropy,
    lambda X: metrics.anisotropy(X, k=1, center=True),
    metrics.effective_rank,
]


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6)) * [9, 2, 1, 1, 0.3, 0.1] + 5


@pytest.fixture(autouse=True)
def in_this_thread():
    """Compute dask arrays here."""
    with dask.config.set(scheduler="synchronous"):
        yield


def assert_same_map(ours, theirs):
    for left, right in zip(ours.to_affine(), theirs.to_affine(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9 * np.abs(right).max())


KINDS = {
    "generator": lambda X, parts, folder: (part for part in parts),
    "loader": lambda X, parts, folder: DataLoader(X, 70, collate_fn=np.stack),
    "tensors": lambda X, parts, folder: tuple(torch.tensor(p, requires_grad=True) for p in parts),
    "memmap": lambda X, parts, folder: as_memmap(X, folder),
    "moments": lambda X, parts, folder: Moments().update(X),
    "dask": lambda X, parts, folder: da.from_array(X, chunks=((0, 120, 180), 6)),
    "dask, 10 blocks": lambda X, parts, folder: da.from_array(X, chunks=(30, 6)),
    "dask, columns": lambda X, parts, folder: da.from_array(X, chunks=(100, 4)),
}


@pytest.mark.parametrize("kind", KINDS)
@small_blocks(chunks=70 * 6)
def test_chunks_give_the_fits_and_figures_of_the_matrix(kind, X, tmp_path):
    parts = np.split(X, [1, 120, 120, 299])  # one of them empty
    for adapter in IN_CHUNKS:
        fitted = clone(adapter).fit(KINDS[kind](X, parts, tmp_path))
        assert_same_map(fitted, clone(adapter).fit(X))
        assert (fitted.n_features_in_, fitted.moments_.count) == (6, 300)
    for metric in COVARIANCE_METRICS:
        found = metric(KINDS[kind](X, parts, tmp_path))
        assert type(found) is float
        assert found == pytest.approx(metric(X), abs=1e-12)


def test_each_chunk_is_asked_for_once_and_partial_fit_goes_on(X):
    log = []

    def chunks():
        for number, part in enumerate(np.split(X, 3)):
            log.append(number)
            yield part

    Whitening().fit(chunks())
    metrics.isoscore(chunks())
    assert log == [0, 1, 2, 0, 1, 2]
    gone_on = Whitening().fit(iter([X[:50], X[50:80]])).partial_fit(X[80:])
    assert_same_map(gone_on, Whitening().fit(X))


@small_blocks(chunks=400 * 16)
def test_a_memory_map_of_any_dtype_is_never_held_as_a_whole(tmp_path):
    rows = np.random.default_rng(0).normal(size=(20_000, 16)).astype(np.float16)
    given = as_memmap(rows, tmp_path)
    for read in (Whitening().fit, metrics.isoscore, metrics.effective_rank):
        read(given)  # what the first call imports is not counted
        tracemalloc.start()
        read(given)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < rows.nbytes / 2  # float64 rows of one chunk: a 12th
    assert_same_map(Whitening().fit(given), Whitening().fit(rows.astype(np.float64)))
    rows[9_000] = np.nan
    for read in (Whitening().fit, metrics.isoscore):
        with pytest.raises(ValueError, match="rows 8800 to 9199: Input X contains NaN"):
            read(as_memmap(rows, tmp_path))


def test_names_of_features_come_from_the_first_frame(X):
    names = [f"e{i}" for i in range(6)]
    for frame in (pd.DataFrame(X, columns=names), pl.DataFrame(X, schema=names)):
        assert list(Whitening().fit([frame[:100], frame[100:]]).feature_names_in_) == names
        with pytest.raises(ValueError, match="chunk 1: The feature names"):
            Whitening().fit([frame, frame[names[::-1]]])


# Dask arrays; the workers of a cluster are in tests/processes.


@pytest.mark.parametrize(
    ("dtype", "chunks"),
    [(np.float64, (70, 6)), (np.float32, (100, 4)), (np.float16, (70, 6)), (np.int64, (70, 6))],
)
def test_transform_of_a_dask_array_is_lazy_and_of_the_right_kind(dtype, chunks, X):
    rows = np.round(10 * X).astype(dtype)
    for adapter in (Whitening(), Whitening("pca", n_components=3)):
        fitted, blocks = adapter.fit(X), da.from_array(rows, chunks=chunks)
        lazy, wanted = fitted.transform(blocks), fitted.transform(rows)
        assert (lazy.dtype, lazy.shape) == (wanted.dtype, wanted.shape)
        assert lazy.chunks == (blocks.chunks[0], (wanted.shape[1],))
        fitted.fit(2 * X)  # what was built before stays
        computed = lazy.compute()
        assert computed.dtype == wanted.dtype
        np.testing.assert_array_equal(computed, wanted)


def test_maps_that_are_not_affine_and_unknown_numbers_of_rows(X):
    adapter = adapters.ClusterIsotropy(random_state=0).fit(X)
    lazy = adapter.transform(da.from_array(X, chunks=(70, 6)))
    np.testing.assert_allclose(lazy.compute(), adapter.transform(X), rtol=1e-9, atol=1e-9)
    blocks, kept = da.from_array(X, chunks=(70, 6)), X[:, 0] > 100 * (X[:, 0] > 5)
    some = blocks[blocks[:, 0] > 100 * (blocks[:, 0] > 5)]  # blocks of which some are empty
    assert np.isnan(some.shape[0])
    fitted = Whitening().fit(some)
    assert_same_map(fitted, Whitening().fit(X[kept]))
    np.testing.assert_allclose(fitted.transform(some).compute(), fitted.transform(X[kept]))


# What is refused.


def nan_in(X, row):
    X = X.copy()
    X[row, 2] = np.nan
    return X


BAD = [
    (lambda X: [], "2D"),
    (lambda X: iter([]), "X gave no rows.*make a fresh one"),
    (lambda X: [X, X[:, :4]], "chunk 1.*4"),
    (lambda X: np.split(nan_in(X, 250), 3), "chunk 2: Input X contains NaN"),
    (lambda X: [np.full((9, 6), 0.1)] * 3, "constant: all 27"),
    (lambda X: da.from_array(nan_in(X, 150), chunks=(50, 6)), "block 3: Input X contains NaN"),
    (lambda X: da.full((40, 6), 0.1, chunks=(9, 2)), "constant: all 40"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_chunks_are_refused_and_leave_the_adapter_as_it_was(make, message, X):
    with pytest.raises(ValueError, match=message):
        metrics.isoscore(make(X))
    adapter = Whitening().fit(X)
    before = dict(vars(adapter))
    with pytest.raises(ValueError, match=message):
        adapter.fit(make(X))
    assert vars(adapter) == before


def test_what_needs_all_rows_says_so_with_the_way_out(X):
    y, fitted = np.arange(300) % 2, Whitening(head=HEAD, head_training="frozen").fit(X)
    for way_out, make in (
        (r"np\.concatenate", lambda: iter([X])),
        ("the embeddings whose moments", lambda: Moments().update(X)),
        (r"X\.compute\(\)", lambda: da.from_array(X, chunks=50)),
    ):
        for call in (*(clone(adapter).fit for adapter in AT_ONCE), lambda X, _: metrics.two_nn(X)):
            with pytest.raises(TypeError, match=way_out):
                call(make(), y)
    for name in ("mean_cosine_similarity", "partition_isotropy", "two_nn", "isotropy_report"):
        with pytest.raises(TypeError, match="rows at once"):
            getattr(metrics, name)([X])
    for call, way_out in (
        (
            lambda: Whitening(shrinkage="ledoit-wolf").fit(
                Moments().update(X).mapped(np.eye(X.shape[1]), np.zeros(X.shape[1]))
            ),
            "shrinkage='auto', 'oas'",
        ),
        (lambda: fitted.predict(iter([X])), r"adapter.transform\(chunk\)"),
        (lambda: fitted.partial_fit([X]), "one chunk at a time"),
        (lambda: fitted.transform(da.from_array(nan_in(X, 9), chunks=50)).compute(), "NaN"),
    ):
        with pytest.raises((TypeError, ValueError), match=way_out):
            call()
