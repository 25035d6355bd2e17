"""The number of threads torch uses: one in small steps, and afterwards what it was before."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from threadpoolctl import OpenBLASController, ThreadpoolController, threadpool_limits

from isoadapt import FlowAdapter, IsotropyLayer, LinearHead
from isoadapt._utils.threads import one_blas_thread_if_small, one_thread
from isoadapt.encoders._locks import FORWARD_LOCK
from isoadapt.model_selection import AdapterSearchCV

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def in_new_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@pytest.fixture(autouse=True)
def three(monkeypatch):
    """Three threads here and by default, no forward pass so far, and nothing left behind."""
    monkeypatch.setattr(FORWARD_LOCK, "threads", set())
    before, default = torch.get_num_threads(), in_new_thread(torch.get_num_threads)
    torch.set_num_threads(3)
    yield
    in_new_thread(lambda: torch.set_num_threads(default))
    torch.set_num_threads(before)
    in_new_thread(lambda: torch.set_num_threads(default))


def counts():
    """Give the number here and what a new Python thread starts with."""
    return torch.get_num_threads(), in_new_thread(torch.get_num_threads)


def test_one_thread_inside_and_as_before_outside():
    with one_thread():
        assert counts() == (1, 3)
        with one_thread():
            assert counts() == (1, 3)
        assert counts() == (1, 3)
    assert counts() == (3, 3)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_as_before_after_an_exception(error):
    with pytest.raises(error), one_thread():
        raise error
    assert counts() == (3, 3)


def test_numbers_set_in_other_threads_stay():
    in_new_thread(lambda: torch.set_num_threads(2))
    assert counts() == (3, 2)
    with one_thread():
        assert counts() == (1, 2)
        in_new_thread(lambda: torch.set_num_threads(4))
        assert counts() == (1, 4)
    assert counts() == (3, 4)


def test_a_number_set_inside_stays():
    with one_thread(), one_thread():
        torch.set_num_threads(2)
    assert counts() == (2, 2)


@pytest.mark.parametrize("first_out", [0, 1])
def test_overlapping_threads(first_out):
    """Both enter one after the other and leave in either order; a third is not affected."""
    inside, leave = [threading.Event() for _ in "ab"], [threading.Event() for _ in "ab"]
    third = ThreadPoolExecutor(1)
    assert third.submit(torch.get_num_threads).result() == 3

    def work(name):
        before = torch.get_num_threads()
        with one_thread():
            inside[name].set()
            assert leave[name].wait(10)
            within = torch.get_num_threads()
        return before, within, torch.get_num_threads()

    with ThreadPoolExecutor(2) as pool:
        found = []
        for name in range(2):
            found.append(pool.submit(work, name))
            assert inside[name].wait(10)
            assert counts() == (3, 3)
        for name in (first_out, 1 - first_out):
            leave[name].set()
            assert found[name].result() == (3, 1, 3)
            assert counts() == (3, 3)
        assert third.submit(torch.get_num_threads).result() == 3
    third.shutdown()


def test_many_threads_at_once():
    start = threading.Barrier(8)

    def work(_):
        start.wait()
        seen = set()
        for _ in range(20):
            with one_thread():
                seen.add(torch.get_num_threads())
            seen.add(-torch.get_num_threads())
        return seen

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [{1, -3}] * 8
    assert counts() == (3, 3)


def in_fork(function):
    """Give what the function returns in a forked process; fails if that takes too long."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            os.write(writer, repr(function()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    assert text, "the child ended without an answer"
    return eval(text)  # of numbers that a test has written


def enter_once():
    before = counts()
    with one_thread():
        within = counts()
    return before, within, counts()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
class TestFork:
    def test_while_another_thread_is_inside(self):
        inside, leave = threading.Event(), threading.Event()

        def work():
            with one_thread():
                inside.set()
                assert leave.wait(30)

        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(work)
            assert inside.wait(10)
            try:
                assert in_fork(enter_once) == ((3, 3), (1, 3), (3, 3))
            finally:
                leave.set()
            other.result()
        assert counts() == (3, 3)

    def test_while_other_threads_enter_and_leave(self):
        stop = threading.Event()

        def work():
            while not stop.is_set():
                with one_thread():
                    pass

        with ThreadPoolExecutor(2) as pool:
            others = [pool.submit(work) for _ in range(2)]
            try:
                for _ in range(15):
                    assert in_fork(enter_once) == ((3, 3), (1, 3), (3, 3))
            finally:
                stop.set()
            [other.result() for other in others]
        assert counts() == (3, 3)

    def test_inside(self):
        with one_thread():
            assert in_fork(enter_once) == ((1, 3), (1, 3), (1, 3))
        assert counts() == (3, 3)

    def test_after_a_forward_pass_the_child_uses_one_thread(self):
        with FORWARD_LOCK.hold():
            pass
        assert in_fork(enter_once) == ((1, 1), (1, 1), (1, 1))
        assert counts() == (3, 3)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no such timers")
def test_interrupts_at_any_moment():
    """Ctrl-C while it is entered or left leaves the number as it was."""

    def interrupt(*_):
        raise KeyboardInterrupt

    interrupted = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for moment in np.linspace(2e-5, 1e-3, 150):
            try:
                signal.setitimer(signal.ITIMER_REAL, moment)
                for _ in range(3):
                    with one_thread():
                        pass
                time.sleep(2e-3)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert torch.get_num_threads() == 3
            deadline = time.monotonic() + 10
            while counts() != (3, 3):  # the default follows at once, but in another thread
                assert time.monotonic() < deadline
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 100


class Watch:
    """Scoring that notes the number of threads it is called with."""

    def __init__(self, error=None):
        self.seen, self.error = set(), error

    def __call__(self, estimator, X, y):
        self.seen.add(torch.get_num_threads())
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
        assert watch.seen == {1}
        assert counts() == (3, 3)

    def test_large_steps_run_in_all_threads(self, kind):
        X, y, head = problem(2000, 512)
        watch = Watch()
        large = {"batch_size": 2000} | ({"hidden": 64} if kind is FlowAdapter else {})
        adapter(kind, head, watch).set_params(**large).fit(X, y)
        assert watch.seen == {3}
        assert counts() == (3, 3)

    @pytest.mark.parametrize("error", [TypeError, KeyboardInterrupt])
    def test_as_before_after_a_failure(self, kind, error):
        X, y, head = problem(200, 6)
        watch = Watch(error("in scoring"))
        with pytest.raises(error, match="in scoring"):
            adapter(kind, head, watch).fit(X, y)
        assert watch.seen == {1}
        assert counts() == (3, 3)

    def test_in_several_python_threads(self, kind):
        X, y, head = problem(200, 6)
        watches = [Watch() for _ in range(4)]

        def fit(watch):
            adapter(kind, head, watch).fit(X, y)
            return torch.get_num_threads()

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(fit, watches)) == [3] * 4
        assert [watch.seen for watch in watches] == [{1}] * 4
        assert counts() == (3, 3)


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
    assert counts() == (3, 3)


def blas_threads():
    """Number of threads of the first BLAS library that is loaded."""
    return ThreadpoolController().select(user_api="blas").info()[0]["num_threads"]


@pytest.fixture
def two_blas_threads():
    with threadpool_limits(2, user_api="blas"):
        OpenBLASController.clear_controlling_thread()  # so that other Python threads may change it
        yield


@pytest.mark.usefixtures("two_blas_threads")
class TestBlas:
    def test_small_products_run_in_one_thread_and_large_ones_in_all(self):
        with one_blas_thread_if_small(np.empty((1000, 384))):
            assert blas_threads() == 1
        large = [np.empty(shape) for shape in ((100_000, 384), (10, 2048), (3,))]
        for X in (*large, [[1.0]]):
            with one_blas_thread_if_small(X):
                assert blas_threads() == 2
        assert blas_threads() == 2

    def test_overlapping_python_threads_keep_the_limit_until_the_last_one_ends(self):
        second_in, first_out = threading.Barrier(2, timeout=30), threading.Barrier(2, timeout=30)

        def second():
            with one_blas_thread_if_small(np.empty((10, 10))):
                second_in.wait()
                first_out.wait()
                return blas_threads()

        with ThreadPoolExecutor(1) as pool:
            with one_blas_thread_if_small(np.empty((10, 10))):
                inside = pool.submit(second)
                second_in.wait()
                assert blas_threads() == 1
            assert blas_threads() == 1
            first_out.wait()
            assert inside.result() == 1
        assert blas_threads() == 2

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_keeps_the_limits_of_its_own_thread_only(self):
        entered, leave = threading.Event(), threading.Event()

        def other():
            with one_blas_thread_if_small(np.empty((10, 10))):
                entered.set()
                leave.wait(30)

        def in_child(expected):
            child = os.fork()
            if child == 0:
                os._exit(0 if blas_threads() == expected else 1)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(other)
            entered.wait(30)
            assert in_child(2) == 0
            with one_blas_thread_if_small(np.empty((10, 10))):
                assert in_child(1) == 0
            leave.set()
            waiting.result()
        assert blas_threads() == 2

    def test_the_loaded_libraries_are_listed_once(self, monkeypatch):
        with one_blas_thread_if_small(np.empty((10, 10))):
            pass
        before = blas_threads()
        listed = []
        monkeypatch.setattr(ThreadpoolController, "_load_libraries", listed.append)
        for _ in range(3):
            with one_blas_thread_if_small(np.empty((10, 10))):
                pass
        monkeypatch.undo()
        assert not listed
        assert blas_threads() == before

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_an_exception_puts_the_number_back(self, error):
        with pytest.raises(error), one_blas_thread_if_small(np.empty((10, 10))):
            raise error
        assert blas_threads() == 2

    def test_a_fit_uses_one_and_leaves_what_was_there(self):
        seen = []

        def scoring(head, outputs, y):
            seen.append(blas_threads())
            return 0.0

        X, y = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 2
        IsotropyLayer(max_epochs=1, scoring=scoring).fit(X, y)
        assert set(seen) == {1}
        assert blas_threads() == 2
