"""The number of threads of torch and BLAS: one in small fits, and afterwards as before."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
from threadpoolctl import OpenBLASController, ThreadpoolController, threadpool_limits

from isoadapt import FlowAdapter, IsotropyLayer, LinearHead
from isoadapt._utils.devices import SharedSetting, one_blas_thread_if_small
from isoadapt.adapters._training._loop import one_thread
from isoadapt.model_selection import AdapterSearchCV


def in_new_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def blas_threads():
    """Number of threads of NumPy's BLAS; one built with OpenMP, as of faiss, has one per thread."""
    libraries = ThreadpoolController().select(user_api="blas").info()
    return next(
        each["num_threads"] for each in libraries if each.get("threading_layer") != "openmp"
    )


def counts():
    """Give the number here, what a new Python thread starts with, and that of BLAS."""
    return torch.get_num_threads(), in_new_thread(torch.get_num_threads), blas_threads()


@pytest.fixture(autouse=True)
def three():
    """Three threads of torch here and by default, two of BLAS, and nothing left behind."""
    before, default = torch.get_num_threads(), in_new_thread(torch.get_num_threads)
    torch.set_num_threads(3)
    with threadpool_limits(2, user_api="blas"):
        OpenBLASController.clear_controlling_thread()  # so that other Python threads may change it
        yield
    torch.set_num_threads(before)
    in_new_thread(lambda: torch.set_num_threads(default))


class TestSharedSetting:
    def make(self):
        state = []

        @contextmanager
        def setting():
            state.append("made")
            yield
            state.append("taken back")

        return SharedSetting(setting), state

    @pytest.mark.parametrize("first_out", [0, 1])
    def test_the_first_holder_makes_it_and_the_last_takes_it_back(self, first_out):
        setting, state = self.make()
        for _ in range(2):
            holders = ExitStack(), ExitStack()
            for holder in holders:
                in_new_thread(lambda holder=holder: holder.enter_context(setting.hold()))
                assert state == ["made"]
            in_new_thread(holders[first_out].close)
            assert state == ["made"]
            holders[1 - first_out].close()
            assert state == ["made", "taken back"]
            state.clear()

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_an_exception_takes_it_back(self, error):
        setting, state = self.make()
        with pytest.raises(error), setting.hold(), setting.hold():
            raise error
        assert state == ["made", "taken back"]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_one_thread_inside_and_as_before_outside(error):
    with ExitStack() as expected:
        if error is not None:
            expected.enter_context(pytest.raises(error))
        with one_thread():
            with one_thread():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
            if error is not None:
                raise error
    assert counts() == (3, 3, 2)


@pytest.mark.parametrize("first_out", [0, 1])
@pytest.mark.parametrize("used_torch", [False, True])
def test_overlapping_threads(used_torch, first_out):
    """Both enter one after the other and leave in either order; a third is not affected."""
    pools = [ThreadPoolExecutor(1) for _ in range(3)]
    if used_torch:
        assert [pool.submit(torch.get_num_threads).result() for pool in pools] == [3] * 3
    pools[2].submit(torch.get_num_threads).result()
    contexts = [ExitStack(), ExitStack()]
    for pool, context in zip(pools, contexts, strict=False):
        pool.submit(context.enter_context, one_thread()).result()
        assert pool.submit(torch.get_num_threads).result() == 1
        assert pools[2].submit(torch.get_num_threads).result() == 3
    for i in (first_out, 1 - first_out):
        assert pools[i].submit(torch.get_num_threads).result() == 1
        pools[i].submit(contexts[i].close).result()
        assert pools[i].submit(torch.get_num_threads).result() == 3
    assert counts() == (3, 3, 2)
    for pool in pools:
        pool.shutdown()


class TestBlas:
    def test_small_products_run_in_one_thread_and_large_ones_in_all(self):
        with one_blas_thread_if_small(np.empty((1000, 384))):
            assert counts() == (3, 3, 1)
        large = [np.empty(shape) for shape in ((100_000, 384), (10, 2048), (3,))]
        for X in (*large, [[1.0]]):
            with one_blas_thread_if_small(X):
                assert blas_threads() == 2
        assert counts() == (3, 3, 2)

    def test_another_python_thread_than_the_first_can_be_the_last(self):
        """OpenBLAS accepts a number only from the thread that set it, as long as that lives."""
        X, first, second = np.empty((10, 10)), ExitStack(), ExitStack()
        with ThreadPoolExecutor(1) as pool, first, second:  # which both close if this test fails
            for _ in range(2):
                pool.submit(first.enter_context, one_blas_thread_if_small(X)).result()
                second.enter_context(one_blas_thread_if_small(X))
                pool.submit(first.close).result()
                assert blas_threads() == 1
                second.close()
                assert blas_threads() == 2

    def test_the_number_of_torch_in_a_new_thread_is_left_alone(self):
        def enter_and_count():
            with one_blas_thread_if_small(np.empty((10, 10))):
                pass
            return torch.get_num_threads()

        assert in_new_thread(enter_and_count) == 3


class Watch:
    """Scoring that notes the numbers of threads it is called with, and may raise."""

    def __init__(self, error=None):
        self.seen, self.error = set(), error

    def __call__(self, estimator, X, y):
        self.seen.add((torch.get_num_threads(), blas_threads()))
        if self.error is not None:
            raise self.error
        return 0.0


def problem(n, d):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) * np.linspace(0.1, 1, d)
    head = LinearHead(rng.normal(size=(2, d)), np.zeros(2), [0, 1])
    return X, head.predict(X), head


def adapter(kind, head, scoring, **parameters):
    if kind is FlowAdapter:
        parameters |= {"alpha": 0.5, "n_blocks": 2, "hidden": 8}
    return kind(head, scoring=scoring, max_epochs=2, random_state=0, device="cpu", **parameters)


@pytest.mark.parametrize("kind", [IsotropyLayer, FlowAdapter])
class TestFit:
    def test_small_steps_run_in_one_thread(self, kind):
        X, y, head = problem(200, 6)
        watch = Watch()
        adapter(kind, head, watch).fit(X, y)
        assert watch.seen == {(1, 1)}
        assert counts() == (3, 3, 2)

    def test_large_steps_run_in_all_threads(self, kind):
        X, y, head = problem(2000, 512)
        watch = Watch()
        large = {"batch_size": 2000} | ({"hidden": 64} if kind is FlowAdapter else {})
        adapter(kind, head, watch).set_params(**large).fit(X, y)
        assert {torch_threads for torch_threads, _ in watch.seen} == {3}
        assert counts() == (3, 3, 2)

    def test_fits_in_four_threads_of_which_one_raises(self, kind):
        X, y, head = problem(200, 6)
        watches = [Watch(), Watch(TypeError("in scoring")), Watch(), Watch()]
        start = threading.Barrier(4, timeout=60)

        def fit(watch):
            start.wait()
            if watch.error is None:
                adapter(kind, head, watch).fit(X, y)
            else:
                with pytest.raises(TypeError, match="in scoring"):
                    adapter(kind, head, watch).fit(X, y)
            return torch.get_num_threads()

        with ThreadPoolExecutor(4) as pool:
            if kind is FlowAdapter:  # each thread has used torch before
                both = threading.Barrier(4, timeout=60)
                list(pool.map(lambda _: (both.wait(), torch.get_num_threads()), range(4)))
            assert list(pool.map(fit, watches)) == [3] * 4
        assert [watch.seen for watch in watches] == [{(1, 1)}] * 4
        assert counts() == (3, 3, 2)


def test_steps_are_small_once_most_members_have_stopped():
    """The score falls with the distance from the start, so all members stop that move at all."""
    X, y, head = problem(400, 256)
    seen, starts = [], {}

    def watch(estimator, X, y):
        seen.append(torch.get_num_threads())
        start = starts.setdefault(y.tobytes(), X.copy())
        return -float(np.abs(X - start).mean())

    layer = adapter(IsotropyLayer, head, watch, batch_size=128, patience=1)
    layer.set_params(max_epochs=4)
    grid = {"lr": [*(k * 1e-3 for k in range(1, 9)), 1e-30]}
    AdapterSearchCV(layer, grid, cv=2, scoring="accuracy", refit=False).fit(X, y)
    assert set(seen[: 2 * 9]) == {3}
    assert seen[-1] == 1
    assert counts() == (3, 3, 2)
