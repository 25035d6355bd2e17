"""The number of threads of torch and BLAS: one in small fits, and afterwards as before."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from threadpoolctl import OpenBLASController, ThreadpoolController

from isoadapt import IsoBN, IsotropyLayer, LinearHead, TransformerEncoder, Whitening, metrics
from isoadapt._utils import threads
from isoadapt.encoders import _opened
from isoadapt.geometry import Moments, _moments
from tests.tiny_models import make_model, make_tokenizer


def in_new_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@functools.cache
def blas():
    """Loaded libraries, found once because that takes long."""
    return ThreadpoolController().select(user_api="blas")


def blas_threads():
    """Number of threads of NumPy's BLAS; one built with OpenMP, as of faiss, has one per thread."""
    libraries = blas().info()
    return next(one["num_threads"] for one in libraries if one.get("threading_layer") != "openmp")


def counts():
    """Give the number here, what a new Python thread starts with, and that of BLAS."""
    return torch.get_num_threads(), in_new_thread(torch.get_num_threads), blas_threads()


@pytest.fixture(autouse=True)
def three():
    """Three threads of torch here and by default, two of BLAS, and nothing left behind."""
    before, default = torch.get_num_threads(), in_new_thread(torch.get_num_threads)
    torch.set_num_threads(3)
    with blas().limit(limits=2):
        OpenBLASController.clear_controlling_thread()  # so that other Python threads may change it
        yield
    torch.set_num_threads(before)
    in_new_thread(lambda: torch.set_num_threads(default))


@pytest.mark.parametrize(("used_torch", "first_out"), [(False, 0), (True, 0), (True, 1)])
def test_overlapping_threads_have_one_each_until_they_leave(used_torch, first_out):
    """Both enter one after the other and leave in either order; a third is not affected."""
    pools = [ThreadPoolExecutor(1) for _ in range(3)]
    if used_torch:
        assert [pool.submit(torch.get_num_threads).result() for pool in pools] == [3] * 3
    pools[2].submit(torch.get_num_threads).result()
    contexts = [ExitStack(), ExitStack()]
    for pool, context in zip(pools, contexts, strict=False):
        pool.submit(context.enter_context, threads.one_torch_thread()).result()
        assert pool.submit(torch.get_num_threads).result() == 1
        assert pools[2].submit(torch.get_num_threads).result() == 3
    for i in (first_out, 1 - first_out):
        assert pools[i].submit(torch.get_num_threads).result() == 1
        pools[i].submit(contexts[i].close).result()
        assert pools[i].submit(torch.get_num_threads).result() == 3
    assert counts() == (3, 3, 2)
    for pool in pools:
        pool.shutdown()


def test_small_products_of_blas_run_in_one_thread_and_large_ones_in_all():
    with threads.one_blas_thread_if_small(np.empty((1000, 384))):
        assert counts() == (3, 3, 1)
    for X in (*map(np.empty, ((100_000, 384), (10, 2048), (3,))), [[1.0]]):
        with threads.one_blas_thread_if_small(X):
            assert blas_threads() == 2
    assert counts() == (3, 3, 2)


def test_another_python_thread_than_the_first_can_be_the_last():
    """OpenBLAS accepts a number only from the thread that set it, as long as that lives."""
    X, first, second = np.empty((10, 10)), ExitStack(), ExitStack()
    with ThreadPoolExecutor(1) as pool, first, second:  # which both close if this test fails
        for _ in range(2):
            pool.submit(first.enter_context, threads.one_blas_thread_if_small(X)).result()
            second.enter_context(threads.one_blas_thread_if_small(X))
            pool.submit(first.close).result()
            assert blas_threads() == 1
            second.close()
            assert blas_threads() == 2


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("call", [Whitening().fit, metrics.isoscore, metrics.isotropy_report])
def test_moments_of_few_rows_are_computed_in_one_blas_thread(monkeypatch, spy, call, small):
    monkeypatch.setattr(threads, "_SMALL", threads._SMALL * small)
    seen = spy(Moments, "update", lambda *_: blas_threads())
    call(X=np.random.default_rng(0).normal(size=(60, 4)))
    assert set(seen) == {1 if small else 2}
    assert counts() == (3, 3, 2)


def test_parts_of_many_rows_are_computed_in_threads_of_one_blas_thread_each(monkeypatch):
    rng, seen, compute = np.random.default_rng(0), [], _moments._chunk_moments
    X, weights = rng.normal([0, 1, 9, 99], size=(50, 4)), rng.integers(0, 3, 50)
    expected = Moments().update(X, weights).to_arrays()

    def watched(rows, part):
        seen.append((len(rows), threading.get_ident(), blas_threads()))
        if np.isnan(rows[0]).any():
            raise MemoryError("in a thread")
        return compute(rows, part)

    monkeypatch.setattr(_moments, "_PART", 1)
    monkeypatch.setattr(_moments, "_chunk_moments", watched)
    found = Moments().update(X, weights).to_arrays()
    lengths, threads, numbers = map(set, zip(*seen, strict=True))
    assert (lengths, len(threads), numbers) == ({16, 17}, 3, {1})
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(MemoryError, match="in a thread"):
        Moments().update(np.where(np.arange(50)[:, None] < 20, X, np.nan))
    assert counts() == (3, 3, 2)


def test_heads_that_are_fitted_step_by_step_are_fitted_in_one_blas_thread(monkeypatch):
    seen = []

    class Watched(LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            seen.append(blas_threads())
            return super().fit(X, y, sample_weight)

    monkeypatch.setattr(threads, "_SMALL", 0)
    monkeypatch.setattr("isoadapt.adapters._heads.LogisticRegression", Watched)
    X = np.random.default_rng(0).normal(size=(60, 4))
    for head in (Watched(), "logistic"):
        IsoBN(head=head, head_training="refit").fit(X, X[:, 0] > 0)
    assert set(seen) == {1}
    assert counts() == (3, 3, 2)


class Watch:
    """Scoring that notes the numbers of threads it is called with, and may raise."""

    def __init__(self, error=None):
        self.seen, self.error = set(), error

    def __call__(self, estimator, X, y):
        self.seen.add((torch.get_num_threads(), blas_threads()))
        if self.error is not None:
            raise self.error
        return 0.0


def fit(scoring, n, d, **parameters):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) * np.linspace(0.1, 1, d)
    head = LinearHead(rng.normal(size=(2, d)), np.zeros(2), [0, 1])
    parameters |= {"max_epochs": 1, "random_state": 0, "device": "cpu"}
    IsotropyLayer(head, scoring=scoring, **parameters).fit(X, head.predict(X))


def test_large_steps_run_in_all_threads():
    watch = Watch()
    fit(watch, 2000, 512, batch_size=2000)
    assert {torch_threads for torch_threads, _ in watch.seen} == {3}
    assert counts() == (3, 3, 2)


def test_small_steps_run_in_one_in_four_threads_of_which_one_raises():
    watches = [Watch(), Watch(TypeError("in scoring")), Watch(), Watch()]
    start = threading.Barrier(4, timeout=60)

    def fit_in_thread(watch):
        start.wait()
        with ExitStack() as expected:
            if watch.error is not None:
                expected.enter_context(pytest.raises(TypeError, match="in scoring"))
            fit(watch, 200, 6)
        return torch.get_num_threads()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(fit_in_thread, watches)) == [3] * 4
    assert [watch.seen for watch in watches] == [{(1, 1)}] * 4
    assert counts() == (3, 3, 2)


@pytest.mark.parametrize(("n", "n_texts", "each"), [(4, 40, 2), (4, 15, 4), (3, 40, 3)])
def test_many_texts_are_encoded_in_two_threads_that_share_those_of_torch(spy, n, n_texts, each):
    torch.set_num_threads(n)
    texts = [" ".join(["cat", "dog"] * (1 + i)) for i in range(n_texts)]
    called = lambda backbone, *_: (backbone.model, torch.get_num_threads())  # noqa: E731
    seen = spy(_opened, "embed_batch", called)
    copies = spy(_opened, "eval_copy", lambda *_: len(seen))
    encoder = TransformerEncoder((make_model(), make_tokenizer()), batch_tokens=64)
    found = encoder.transform(texts)
    models, numbers = zip(*seen[2:], strict=True)
    alone = np.concatenate([encoder.transform([text]) for text in texts])
    np.testing.assert_allclose(found, alone, atol=1e-6)
    # The first two passes may add hooks to modules, which must not be copied meanwhile.
    assert copies == [2] * (each < n)
    assert set(numbers) == {each}
    assert len(set(map(id, models))) == n // each
    assert counts() == (n, n, 2)


def test_a_python_thread_that_starts_meanwhile_has_all_threads_of_torch(monkeypatch):
    torch.set_num_threads(4)
    others, found, set_number = [], [], torch.set_num_threads

    def start():
        threads.settle_threads()
        found.append(torch.get_num_threads())

    def watched(number):
        set_number(number)
        others.append(threading.Thread(target=start))
        others[-1].start()
        others[-1].join(0.05)

    monkeypatch.setattr(torch, "set_num_threads", watched)
    with threads.workers(2):
        for other in others:
            other.join()
    assert found == [4] * len(others)
