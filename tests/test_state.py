"""Results do not depend on what the caller has set: gradients, autocast, data types, outputs."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import sklearn
import torch

from isoadapt import (
    AdaptedEncoder,
    IsotropyLayer,
    LinearHead,
    TransformerEncoder,
    Whitening,
    metrics,
)
from isoadapt._utils.state import own_state
from isoadapt.adapters._registry import MODULES, adapter_class
from isoadapt.encoders import EmbeddingCache, layer_report, load_checkpoint
from isoadapt.geometry import Moments
from isoadapt.model_selection import AdapterSearchCV
from tests.tiny_models import TEXTS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 6)) @ np.diag([9, 3, 1, 1, 1, 1e-3]) + 1
Y = np.arange(60) % 2
HEAD = LinearHead(RNG.normal(size=(2, 6)), np.zeros(2), [0, 1])
QUICK = {"max_epochs": 2, "random_state": 0, "n_blocks": 1, "hidden": 8}


@contextmanager
def switched(switch, value, before):
    """Set something global to a value, and afterwards to what it was before."""
    switch(value)
    try:
        yield
    finally:
        switch(before)


def default_dtype(dtype):
    return switched(torch.set_default_dtype, dtype, torch.float32)


STATES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "gradients off": lambda: switched(torch.set_grad_enabled, False, True),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "deterministic": lambda: switched(torch.use_deterministic_algorithms, True, False),
    "device": lambda: torch.device("meta"),
    "NumPy raises": lambda: np.errstate(all="raise"),
    "pandas": lambda: sklearn.config_context(transform_output="pandas"),
    "polars": lambda: sklearn.config_context(transform_output="polars"),
    "unchecked": lambda: sklearn.config_context(assume_finite=True, skip_parameter_validation=True),
    "routing": lambda: sklearn.config_context(enable_metadata_routing=True),
}


# Each door is entered in all states at once that can be together, and some of them in each state.
ONE_OF = ["inference_mode", "bfloat16", "polars"], ["no_grad", "float64", "pandas"]
TOGETHER = [[state for state in STATES if state not in others] for others in ONE_OF]


def adapted(name):
    cls = adapter_class(name)
    known = cls._get_param_names()
    parameters = {key: value for key, value in QUICK.items() if key in known}
    y = X[:, :3] if name == "TeacherReadout" else Y
    model = cls(**parameters).set_params(head=None if name == "TeacherReadout" else HEAD)
    model.fit(X, y)
    found = [model.transform(X)] + ([] if model.head is None else [model.predict_proba(X)])
    return [*found, [model.score(X, y)]]


def measured():
    report = metrics.isotropy_report(X, labels=Y).to_dict()
    figures = [value for value in report.values() if isinstance(value, float)]
    return [figures, [metrics.two_nn(X), metrics.isoscore_star(X), metrics.partition_isotropy(X)]]


DOORS = {
    name: lambda folder, name=name: adapted(name) for name in MODULES if name != "PenaltyAdapter"
}
DOORS["metrics"] = lambda folder: measured()
DOORS["encoder"] = lambda folder: [TransformerEncoder(folder).transform(TEXTS)]
DOORS["checkpoint"] = lambda folder: [load_checkpoint(folder)[1].coef_]
DOORS["layers"] = lambda folder: [layer_report(folder, TEXTS).to_numpy()]


def adapted_encoder(folder):
    model = AdaptedEncoder(folder, adapter_class("LogitPreservingWhitening")()).fit(TEXTS)
    return [model.transform(TEXTS), model.predict_proba(TEXTS)]


def searched(folder):
    adapter = IsotropyLayer(**{k: QUICK[k] for k in ("max_epochs", "random_state")})
    search = AdapterSearchCV(adapter, {"alpha": [0.3, 0.7]}, cv=2).fit(X, Y)
    assert search.unbatched_ == {}
    return [search.cv_results_["mean_test_score"], search.transform(X)]


DOORS |= {"AdaptedEncoder": adapted_encoder, "search": searched}


@pytest.fixture(scope="module")
def plain(checkpoint):
    found = {}

    def results(door):
        if door not in found:
            found[door] = DOORS[door](checkpoint)
        return found[door]

    return results


@pytest.mark.filterwarnings(
    "ignore:7 different texts",
    "ignore:R² of the teacher",
    "ignore:this fit harms",
    "ignore:training ended",
)
@pytest.mark.parametrize(
    ("door", "states"),
    [(door, states) for door in DOORS for states in TOGETHER]
    + [
        (door, [state])
        for door in ("IsotropyLayer", "metrics", "AdaptedEncoder")
        for state in STATES
    ],
)
def test_results_do_not_depend_on_the_state_around_a_call(door, states, plain, checkpoint):
    expected = plain(door)
    with ExitStack() as stack, warnings.catch_warnings():
        for state in states:
            stack.enter_context(STATES[state]())
        found = DOORS[door](checkpoint)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-6, atol=1e-6)


def test_a_cache_keeps_no_vectors_of_another_precision(checkpoint, tmp_path):
    encoder = TransformerEncoder(checkpoint, cache=EmbeddingCache(tmp_path))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = encoder.transform(TEXTS)
    np.testing.assert_array_equal(encoder.transform(TEXTS), inside)
    exact = TransformerEncoder(checkpoint).transform(TEXTS)
    np.testing.assert_allclose(inside, exact, rtol=1e-6, atol=1e-6)


def test_the_state_is_as_before_after_a_call():
    with torch.no_grad(), default_dtype(torch.float64), np.errstate(all="raise"):
        Whitening().fit(X)
        assert not torch.is_grad_enabled()
        assert torch.get_default_dtype() == torch.float64
        assert np.geterr()["under"] == "raise"
    with sklearn.config_context(transform_output="pandas"):
        assert list(Whitening().fit_transform(X).columns)[:1] == ["whitening0"]


def test_a_service_without_a_standard_error_stream(checkpoint, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    TransformerEncoder(checkpoint, verbose=1).transform(TEXTS)
    IsotropyLayer(HEAD, max_epochs=1, verbose=1).fit(X, Y)


def test_other_threads_keep_their_data_type_during_a_fit(spy):
    found = spy(Moments, "update", lambda *_: torch.get_default_dtype())
    with default_dtype(torch.float64):
        adapted("IsotropyLayer")
        measured()
    assert {*found} == {torch.float64}


def test_a_call_that_ends_leaves_the_data_type_of_one_that_goes_on():
    def first():
        with own_state(models=True):
            entered.wait()
        ended.wait()

    def second():
        with own_state(models=True):
            entered.wait()
            ended.wait()
            return torch.get_default_dtype()

    entered, ended = threading.Barrier(2), threading.Barrier(2)
    with default_dtype(torch.float64), ThreadPoolExecutor(2) as threads:
        started = threads.submit(first)
        assert threads.submit(second).result() == torch.float32
        started.result()
        assert torch.get_default_dtype() == torch.float64
