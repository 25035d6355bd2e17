"""Dask arrays: reduced to moments by block, adapted lazily; searches over a cluster's workers."""

import logging
import os
import pickle
import signal
from contextlib import contextmanager

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from isoadapt import (
    AdaptedEncoder,
    ClusterIsotropy,
    EmbeddingCache,
    FlowAdapter,
    IsotropyLayer,
    TransformerEncoder,
    Whitening,
)
from isoadapt.geometry import Moments
from isoadapt.metrics import isoscore, mean_cosine_similarity
from tests.test_chunks import COVARIANCE_METRICS, IN_CHUNKS, assert_same_map, make_rows
from tests.tiny_models import WORDS

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
bag = pytest.importorskip("dask.bag")
distributed = pytest.importorskip("distributed")

X = pytest.fixture(scope="module", name="X")(make_rows)


@pytest.fixture(autouse=True)
def in_this_thread():
    """Compute here where there is no cluster."""
    with dask.config.set(scheduler="synchronous"):
        yield


@contextmanager
def two_processes():
    """Yield the client of two worker processes on this machine."""
    cluster = distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address=None,
        silence_logs=logging.CRITICAL,
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def client():
    """Two worker processes."""
    with two_processes() as client:
        yield client


@pytest.mark.parametrize("chunks", [(30, 6), (100, 4), ((0, 120, 180), 6)])
@pytest.mark.parametrize("adapter", IN_CHUNKS, ids=repr)
def test_adapters_fit_blocks_as_they_fit_the_matrix(adapter, chunks, X):
    fitted = clone(adapter).fit(da.from_array(X, chunks=chunks))
    assert_same_map(fitted, clone(adapter).fit(X))
    assert (fitted.n_features_in_, fitted.moments_.count) == (6, 300)


@pytest.mark.parametrize("metric", COVARIANCE_METRICS)
def test_covariance_metrics_of_blocks_are_those_of_the_matrix(metric, X):
    assert metric(da.from_array(X, chunks=(40, 4))) == pytest.approx(metric(X), abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64])
@pytest.mark.parametrize("chunks", [(70, 6), (100, 4)])
def test_transform_is_lazy_and_of_the_right_kind(dtype, chunks, X):
    rows = np.round(10 * X).astype(dtype)
    for adapter in (Whitening(), Whitening("pca", n_components=3)):
        fitted = adapter.fit(X)
        blocks = da.from_array(rows, chunks=chunks)
        lazy, wanted = fitted.transform(blocks), fitted.transform(rows)
        assert isinstance(lazy, da.Array)
        assert (lazy.dtype, lazy.shape) == (wanted.dtype, wanted.shape)
        assert lazy.chunks == (blocks.chunks[0], (wanted.shape[1],))
        assert (type(lazy._meta), lazy._meta.dtype) == (np.ndarray, wanted.dtype)
        fitted.fit(2 * X)  # what was built before stays
        computed = lazy.compute()
        assert computed.dtype == wanted.dtype
        np.testing.assert_array_equal(computed, wanted)


@pytest.mark.parametrize(
    "adapter",
    [ClusterIsotropy(random_state=0), FlowAdapter(max_epochs=1, n_blocks=2, random_state=0)],
    ids=repr,
)
def test_transform_of_maps_that_are_not_affine_is_lazy_too(adapter, X):
    fitted = adapter.fit(X)
    lazy = fitted.transform(da.from_array(X, chunks=(70, 6)))
    np.testing.assert_allclose(lazy.compute(), fitted.transform(X), rtol=1e-9, atol=1e-9)


def test_unknown_numbers_of_rows_are_fine(X):
    blocks = da.from_array(X, chunks=(70, 6))
    some = blocks[blocks[:, 0] > 100 * (blocks[:, 0] > 5)]  # blocks of which some are empty
    assert np.isnan(some.shape[0])
    wanted = X[X[:, 0] > 100 * (X[:, 0] > 5)]
    fitted = Whitening().fit(some)
    assert_same_map(fitted, Whitening().fit(wanted))
    np.testing.assert_allclose(fitted.transform(some).compute(), fitted.transform(wanted))


def test_bad_arrays_are_refused_and_leave_the_adapter_as_it_was(X):
    nan = X.copy()
    nan[150, 2] = np.nan
    columns = da.from_array(np.arange(6) < 4, chunks=3)
    cases = {
        "block 3: Input X contains NaN": da.from_array(nan, chunks=(50, 6)),
        "X gave no rows": da.zeros((0, 6)),
        "Expected 2D array, got 1D array": da.from_array(X[:, 0], chunks=50),
        "number of features is unknown": da.from_array(X, chunks=(50, 3))[:, columns],
        "X is constant: all 40 rows": da.full((40, 6), 0.1, chunks=(9, 2)),
        r"1 row\(s\)": da.from_array(X[:1], chunks=(1, 6)),
    }
    adapter = Whitening().fit(X)
    before = dict(vars(adapter))
    for message, bad in cases.items():
        with pytest.raises(ValueError, match=message):
            adapter.fit(bad)
        with pytest.raises(ValueError, match=message):
            isoscore(bad)
    assert vars(adapter) == before
    with pytest.raises(ValueError, match="X has 4 features, but Whitening is expecting 6"):
        adapter.transform(da.from_array(X[:, :4], chunks=50))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        adapter.transform(da.from_array(nan, chunks=50)).compute()


@pytest.mark.parametrize(
    "adapter",
    [Whitening(shrinkage="ledoit-wolf"), Whitening(head="logistic"), IsotropyLayer()],
    ids=repr,
)
def test_adapters_that_need_all_rows_say_so(adapter, X):
    with pytest.raises(TypeError, match=r"X is a dask array, but .* such as X.compute\(\)"):
        adapter.fit(da.from_array(X, chunks=50), np.arange(300) % 2)
    with pytest.raises(TypeError, match=r"X is a dask array, but .* such as X.compute\(\)"):
        mean_cosine_similarity(da.from_array(X, chunks=50))


@pytest.mark.slow
def test_workers_read_reduce_and_adapt_their_blocks(client):
    here = os.getpid()

    def make(number):
        return np.random.default_rng(number).normal(size=(1000, 6)) * np.arange(1, 7)

    def read(number):
        assert os.getpid() != here
        return make(number)

    blocks = [da.from_delayed(dask.delayed(read)(i), (1000, 6), float) for i in range(20)]
    rows = da.concatenate(blocks)
    whole = np.concatenate([make(number) for number in range(20)])
    with dask.config.set(scheduler=client):
        fitted = Whitening().fit(rows)
        assert_same_map(fitted, Whitening().fit(whole))
        assert isoscore(rows) == pytest.approx(isoscore(whole), abs=1e-12)
        adapted = fitted.transform(rows).compute()
        np.testing.assert_allclose(adapted, fitted.transform(whole), rtol=1e-9, atol=1e-12)
        with pytest.raises(ValueError, match="block 1: Input X contains NaN"):
            Whitening().fit(da.where(rows == whole[1500, 0], np.nan, rows))


@pytest.mark.slow
def test_a_killed_worker_changes_no_moment(tmp_path):
    def make(number):
        return np.random.default_rng(number).normal(size=(1000, 6)) * np.arange(1, 7) + 1e3

    def read(number):
        if number == 13 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return make(number)

    blocks = [da.from_delayed(dask.delayed(read)(i), (1000, 6), float) for i in range(20)]
    with two_processes() as client, dask.config.set(scheduler=client):
        found = Whitening().fit(da.concatenate(blocks)).moments_.to_arrays()
    assert (tmp_path / "killed").exists()
    whole = Moments().update(np.concatenate([make(number) for number in range(20)])).to_arrays()
    for name, value in whole.items():
        size = np.abs(value).max()
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-12 * size, err_msg=name)


@pytest.mark.slow
def test_partitions_of_a_bag_are_encoded_by_one_model_a_worker(client, checkpoint):
    texts = [f"{word} {other}" for word in WORDS for other in WORDS]
    encoder = TransformerEncoder(str(checkpoint))
    H = encoder.transform(texts)
    assert len(pickle.dumps(encoder)) < 2000
    partitions = bag.from_sequence(texts, npartitions=8)

    def encode(part):
        from isoadapt.encoders import _models

        rows = list(part)  # an iterator, if dask has fused the steps before
        vectors = encoder.transform(rows) if rows else np.empty((0, H.shape[1]), np.float32)
        return {(os.getpid(), *map(id, _models._STORE.values()))}, vectors

    with dask.config.set(scheduler=client):
        found = partitions.map(str.strip).map_partitions(lambda part: [encode(part)]).compute()
        models = set().union(*(seen for seen, _ in found))
        assert len(models) == len({process for process, *_ in models}) == 2
        np.testing.assert_array_equal(np.concatenate([vectors for _, vectors in found]), H)
        some = partitions.filter(lambda text: text.startswith("the")).map_partitions(
            lambda part: encode(part)[1]
        )
        blocks = [da.from_delayed(each, (np.nan, 16), np.float32) for each in some.to_delayed()]
        wanted = H[[text.startswith("the") for text in texts]]
        rows = da.concatenate(blocks)
        assert_same_map(whitening := Whitening().fit(rows), Whitening().fit(wanted))
        np.testing.assert_allclose(
            whitening.transform(rows).compute(), whitening.transform(wanted), rtol=1e-6
        )
        adapted = AdaptedEncoder(encoder, Whitening()).fit(texts)
        np.testing.assert_allclose(
            np.stack(partitions.map_partitions(adapted.transform).compute()),
            adapted.transform(texts),
            rtol=1e-5,
            atol=1e-6,
        )


@pytest.mark.slow
def test_a_search_over_workers_encodes_each_text_once(client, checkpoint, tmp_path):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 5)) for _ in range(40)]
    texts += texts[:20]
    y = np.arange(60) % 2
    grid = {"whitening__shrinkage": [0.1, 0.5, 0.9]}

    def search(**options):
        encoder = TransformerEncoder(str(checkpoint), **options)
        return GridSearchCV(make_pipeline(encoder, Whitening(head="logistic")), grid, cv=3)

    with joblib.parallel_config("dask"):
        shared = search(cache=str(tmp_path)).fit(texts, y)
    alone = search().fit(texts, y)
    np.testing.assert_allclose(
        shared.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"], atol=1e-9
    )
    stats = EmbeddingCache(tmp_path).stats()
    assert (stats.misses, stats.rows) == (len(set(texts)),) * 2
