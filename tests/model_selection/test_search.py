"""AdapterSearchCV: against GridSearchCV, fit by fit; what is trained together, and refused."""

from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from scipy.special import logsumexp
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import make_classification, make_regression
from sklearn.decomposition import PCA
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, ParameterGrid, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

from isoadapt import IsotropyLayer, IStarAdapter, LinearHead, SpectrumControlAdapter, adapters
from isoadapt.adapters import _together
from isoadapt.adapters._engine._loop import AdapterNet
from isoadapt.adapters._engine._task import Penalty
from isoadapt.adapters._together import fit_together, prepare
from isoadapt.model_selection import AdapterSearchCV, make_isotropy_scorer
from isoadapt.model_selection._search import _evaluation
from tests.model_selection.searches import agree, assert_same_results, count_members

pytestmark = pytest.mark.usefixtures("fixed_penalties")


X, Y = make_classification(160, 8, n_informative=6, n_classes=3, random_state=0)
X = X @ np.random.default_rng(0).normal(size=(8, 8)) + 2
HEAD = LinearHead.from_estimator(LogisticRegression(max_iter=1000).fit(X, Y))
QUICK = {"max_epochs": 1, "random_state": 0}


# --- training together ----------------------------------------------------------------------------


def one_by_one(adapter, grid):
    return [clone(adapter).set_params(**point).fit(X, Y) for point in ParameterGrid(grid)]


def at_once(adapter, grid):
    models = [clone(adapter).set_params(**point) for point in ParameterGrid(grid)]
    prepared = {each.random_state: prepare(each, X, Y) for each in models}
    assert len({each._batch_key() for each in models}) == 1
    shared = [prepared[each.random_state] for each in models]
    assert not any(fit_together(models, shared))
    return models


KINDS = [
    (IStarAdapter(HEAD, coordinates="raw"), {"lam": [-1, 3], "zeta": [0.2, 0.8]}),
    (IStarAdapter(HEAD, zeta=0.0, bias_corrected=True), {"lam": [-1, 3], "lr": [5e-4, 1e-3]}),
    (IsotropyLayer(HEAD, lr=1e-3), {"smoothing": [0.05, 1.0], "weight_decay": [0, 0.1]}),
    (IsotropyLayer(HEAD, head_training="joint"), {"alpha": [0.2, 0.9], "weight_decay": [0, 0.1]}),
    (adapters.CosRegAdapter(HEAD), {"lam": [-1, 0, 2]}),
    (IStarAdapter(coordinates="raw"), {"zeta": [0.2, 0.8], "random_state": [0, 1]}),
    (IsotropyLayer(HEAD, head_training="alternating"), {"lr": [5e-4, 1e-3], "alpha": [0.2, 0.9]}),
    (SpectrumControlAdapter(HEAD), {"lam": [0, 2], "lr": [5e-4, 1e-3]}),
    (adapters.TopologicalEntropyAdapter(HEAD), {"lam": [-1, 1], "random_state": [0, 1]}),
]


@pytest.mark.parametrize(("adapter", "grid"), KINDS)
def test_one_epoch_together_gives_the_weights_of_each_alone(adapter, grid):
    adapter = clone(adapter).set_params(max_epochs=1, validation_fraction=None, random_state=0)
    for ours, alone in zip(at_once(adapter, grid), one_by_one(adapter, grid), strict=True):
        difference = np.linalg.norm(ours.transform(X) - alone.transform(X))
        assert difference <= 1e-4 * np.linalg.norm(alone.transform(X))
        loss = alone.history_[0]["train_loss"]
        assert ours.history_[0]["train_loss"] == pytest.approx(loss, rel=1e-4, abs=1e-5)


def log_likelihood(head, outputs, y):
    """scikit-learn's neg_log_loss of logits and classes 0, 1, ..., without its checks."""
    return np.mean(outputs[np.arange(len(y)), y] - logsumexp(outputs, axis=1))


@pytest.mark.filterwarnings("ignore:this fit harms the task")
def test_members_stop_when_they_would_alone_and_drop_out(spy):
    """The stopped ones cost nothing any more: later batches hold the others only."""
    stopping = {"patience": 2, "lr": 0.3, "lr_schedule": "constant", "ridge": 0.0}
    adapter = IStarAdapter(HEAD, max_epochs=6, scoring=log_likelihood, random_state=0, **stopping)
    grid = {"lam": [-3, 5], "random_state": [0, 1]}
    separate = one_by_one(adapter, grid)
    widths = spy(AdapterNet, "train_step", lambda net, _: len(net.module_.weight))
    for ours, alone in zip(at_once(adapter, grid), separate, strict=True):
        assert (ours.n_iter_, ours.best_epoch_) == (alone.n_iter_, alone.best_epoch_)
        difference = np.linalg.norm(ours.map_.matrix - alone.map_.matrix)
        assert difference <= 1e-4 * np.linalg.norm(alone.map_.matrix)
    epochs = [each.n_iter_ for each in separate]
    assert len(set(epochs)) > 1
    n_batches = -(-112 // 64)
    assert sum(widths) == n_batches * sum(epochs)


# --- against GridSearchCV -------------------------------------------------------------------------

GRID = {"lam": [-1, 0.5], "zeta": [0.2, 0.8]}
ADAPTER = IStarAdapter(HEAD, **QUICK)


@pytest.fixture(scope="module")
def plain():
    """GridSearchCV of the adapter and grid that several tests share; do not change it."""
    return GridSearchCV(ADAPTER, GRID, cv=2).fit(X, Y)


class TestAgainstGridSearchCV:
    @pytest.mark.parametrize(
        ("adapter", "grid"),
        [
            (IsotropyLayer(**QUICK), {"alpha": [0.3, 1.0], "batch_size": [32, 64]}),
            (SpectrumControlAdapter(HEAD, **QUICK), [{"lam": [0, 1]}, {"coordinates": ["raw"]}]),
        ],
    )
    def test_adapter_alone(self, adapter, grid):
        ours, theirs = agree(adapter, grid, X, Y, cv=2, return_train_score=True)
        assert ours.best_params_ in theirs.cv_results_["params"]
        assert type(ours.best_estimator_) is type(theirs.best_estimator_)
        best = clone(adapter).set_params(**ours.best_params_).fit(X, Y)
        np.testing.assert_allclose(best.transform(X), ours.transform(X))

    def test_pipeline_fits_the_steps_before_the_adapter_in_each_fold(self):
        """Steps that cannot be pickled are told apart."""
        more = FunctionTransformer(lambda X: X + 1, validate=True)
        less = FunctionTransformer(lambda X: X - 1)
        pipe = make_pipeline(more, StandardScaler(), less, PCA(8), IStarAdapter(**QUICK))
        grid = {"istaradapter__lam": [-1, 1], "pca__n_components": [2, 8]}
        ours, _ = agree(pipe, grid, X, Y, cv=2)
        assert ours.predict(X).shape == Y.shape
        assert [name for name, _ in ours.best_estimator_.steps] == list(pipe.named_steps)

    def test_groups_frames_and_several_metrics(self):
        frame = pd.DataFrame(X, columns=[f"e{i}" for i in range(8)])
        scoring = {"accuracy": "accuracy", "isoscore": make_isotropy_scorer()}
        options = {"cv": GroupKFold(3), "scoring": scoring, "refit": "accuracy"}
        given = {"groups": np.arange(160) % 7}  # so that folds have different sizes
        ours, theirs = agree(ADAPTER, {"lam": [-1, 2]}, frame, Y, given, **options)
        assert ours.multimetric_
        assert list(ours.feature_names_in_) == list(theirs.feature_names_in_)
        assert ours.best_score_ == ours.cv_results_["mean_test_accuracy"].max()

    def test_a_step_that_mixes_rows_stays_inside_the_folds(self):
        """Each row depends on the others, although the step needs no fit."""
        centre = FunctionTransformer(lambda X: X - np.median(X, 0))
        steps = [("centre", centre), ("next", "passthrough"), ("adapter", ADAPTER)]
        scoring = {"scoring": "neg_log_loss", "atol": 1e-5}
        agree(Pipeline(steps), {"next": ["passthrough", StandardScaler()]}, X, Y, cv=2, **scoring)


class Distant(adapters.CosRegAdapter):
    """Its penalty depends on the weight decay, on the rows, on their labels and on the layer."""

    def _make_penalty(self, problem, device):
        penalty = Distance(lambda points: (points - self.weight_decay).square().mean((-2, -1)))
        penalty.sign = 1 if self.weight_decay else -1
        return penalty


class Distance(Penalty):
    """It has no `join`, so that each member's own penalty is called."""

    def refresh(self, layer):
        self.center = layer.weight.square().mean((-2, -1))

    def __call__(self, points, targets, layer):
        labels = targets.expand(points.shape[:2]).float()
        own = self.sign * layer.weight.mean((-2, -1)) + (points.mean(-1) * labels).mean(-1)
        return self.loss(points - self.center[:, None, None]) + own


@pytest.mark.parametrize(
    ("adapter", "grid"),
    [
        (Distant(HEAD, lam=3.0, **QUICK), {"weight_decay": [0.0, 9.0]}),
        (Distant(HEAD, lam=3.0, **QUICK), {"random_state": [0, 1]}),
        (
            SpectrumControlAdapter(HEAD, lam=9.0, coordinates="raw", ridge=0.0, lr=0.1, **QUICK),
            {"random_state": [0, 1]},
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:this fit harms the task")
def test_penalties_that_differ_are_called_one_by_one_in_one_training(adapter, grid):
    agree(adapter, grid, X, Y, cv=2, scoring="neg_log_loss", atol=1e-5)


@pytest.mark.parametrize("member_axis", [False, True])
def test_a_users_penalty_is_trained_together_whatever_the_split(member_axis):
    """The coordinates differ between splits, the units of the labels do too."""

    def penalty(Z, labels, prior_cov):
        rows = (Z - labels).square().mean((-2, -1))
        return rows + prior_cov.diagonal(dim1=-2, dim2=-1).sum(-1)

    penalty.member_axis = member_axis
    rows, values = make_regression(100, 8, noise=20.0, random_state=0)
    adapter = adapters.PenaltyAdapter(penalty, "ridge", lam=2.0, **QUICK)
    agree(adapter, {"lam": [0.0, 3.0], "random_state": [0, 1]}, rows, values, cv=2, atol=1e-5)


class TestMemory:
    @pytest.mark.parametrize(("bound", "most"), [(52_000, 2), (None, 8)])
    def test_bound_decides_how_many_members_a_network_has(self, monkeypatch, plain, bound, most):
        calls = count_members(monkeypatch)
        search = AdapterSearchCV(ADAPTER, GRID, cv=2, max_memory=bound, refit=False)
        assert_same_results(search.fit(X, Y), plain)
        assert (max(calls), sum(calls)) == (most, 8)

    def test_a_block_that_fails_is_fitted_one_at_a_time(self, monkeypatch, plain):
        monkeypatch.setattr(_together, "train_adapters", Mock(side_effect=MemoryError))
        with pytest.warns(UserWarning, match="8 of 8 fits .* failed with MemoryError"):
            ours = AdapterSearchCV(ADAPTER, GRID, cv=2, refit=False).fit(X, Y)
        assert_same_results(ours, plain)


# --- what cannot be trained together, fails, or is refused ----------------------------------------


class TestWhatCannotBeTrainedTogether:
    @pytest.mark.parametrize(
        ("adapter", "grid", "alone"),
        [
            (adapters.Whitening(head="logistic"), {"strength": [0.5, 1.0]}, 4),
            (
                Pipeline([("layer", IsotropyLayer(HEAD, max_epochs=1, random_state=0))]),
                [{"layer__alpha": [0.5, 1.0]}, {"layer": [adapters.ExactIsotropyLayer(HEAD)]}],
                2,
            ),
        ],
    )
    def test_is_done_one_by_one_and_said(self, adapter, grid, alone):
        with pytest.warns(UserWarning, match=f"{alone} of [46] fits .*(Whitening|Exact)"):
            agree(adapter, grid, X, Y, cv=2, alone=[alone])

    @pytest.mark.parametrize(
        "grid",
        [{"adapter__lr": [1e-3, 1e38]}, {"pca__n_components": [4, 100], "adapter__lam": [0, 1]}],
    )
    @pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
    @pytest.mark.filterwarnings("ignore:[0-9]+ of [0-9]+ fits could not be trained together")
    def test_a_failing_candidate_has_nan_and_leaves_the_others_alone(self, grid):
        pipe = Pipeline([("pca", PCA(6)), ("adapter", IStarAdapter(**QUICK))])
        with pytest.warns(FitFailedWarning):
            ours, _ = agree(pipe, grid, X, Y, cv=2, alone=None)
        assert np.isnan(ours.cv_results_["mean_test_score"]).any()
        assert ours.best_score_ > 0.4

    @pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
    @pytest.mark.filterwarnings("ignore:[0-9]+ of [0-9]+ fits could not be trained together")
    @pytest.mark.filterwarnings("ignore:[^0-9]*[0-9]+ fits failed")
    def test_an_invalid_candidate_is_the_only_one_that_is_fitted_alone(self):
        grid = {"lam": [0.5, 1.0, np.inf]}
        search = AdapterSearchCV(IStarAdapter(HEAD, **QUICK), grid, cv=2, refit=False).fit(X, Y)
        assert search.unbatched_ == {"training failed with InvalidParameterError": 2}


@pytest.mark.parametrize(
    ("estimator", "grid", "options", "word"),
    [
        (ADAPTER, [], {}, "nothing to fit"),
        (ADAPTER, GRID, {"max_memory": 0}, "max_memory"),
        (ADAPTER, {"lr": [1e38]}, {"error_score": "raise"}, "diverged"),
        (ADAPTER, {"head": [HEAD, None]}, {}, "scoring="),
        (make_pipeline(Normalizer(), ADAPTER), {"istaradapter__lamb": [1]}, {}, "'lamb'"),
        # a cache needs integer random states and what can be pickled
        (IStarAdapter(), GRID, {"cache": "cache"}, "random_state=None"),
        (make_pipeline(PCA(4), ADAPTER), {}, {"cache": "cache"}, "pca__random_state=None"),
        (ADAPTER, GRID, {"cache": "cache", "cv": KFold(3, shuffle=True)}, "cv.random_state=None"),
        (ADAPTER, GRID, {"cache": "cache", "scoring": lambda *_: 0.5}, "can be pickled"),
    ],
)
def test_wrong_parameters(estimator, grid, options, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=word):
        AdapterSearchCV(estimator, grid, **options).fit(X, Y)


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
def test_an_interrupt_returns_what_is_done(monkeypatch, plain):
    run, count = _evaluation.Group.run, []

    def stopping(self, fits):
        count.append(1)
        if len(count) > 3:
            raise KeyboardInterrupt
        return run(self, fits)

    monkeypatch.setattr(_evaluation.Group, "run", stopping)
    count_members(monkeypatch, most=2)
    search = AdapterSearchCV(ADAPTER, GRID, cv=2)
    with pytest.warns(UserWarning, match="interrupted: 2 of 4 candidates"):
        search.fit(X, Y)
    scores = search.cv_results_["mean_test_score"]
    np.testing.assert_allclose(scores[:2], plain.cv_results_["mean_test_score"][:2], atol=3e-3)
    assert np.isnan(scores[2:]).all()
    assert search.best_index_ in (0, 1)
    assert search.predict(X).shape == Y.shape


@pytest.mark.parametrize(("most", "sizes"), [(8, [4, 4]), (2, [2] * 4)])
def test_each_worker_gets_a_part(monkeypatch, plain, most, sizes):
    """Threads in place of processes, which would have to import everything."""
    calls = count_members(monkeypatch, most=most)
    with parallel_config("threading"):
        ours = AdapterSearchCV(ADAPTER, GRID, cv=2, n_jobs=2, refit=False).fit(X, Y)
    assert sorted(calls) == sizes  # folds of equal size are trained in one network
    assert_same_results(ours, plain)


# --- sample_weight and groups, passed on ----------------------------------------------------------

COUNTS = np.random.default_rng(0).integers(0, 4, size=len(X))
GROUPS = np.random.default_rng(1).integers(0, 40, size=len(X))
PIPE = make_pipeline(StandardScaler(), IStarAdapter(**QUICK))


def same(*arguments, **options):
    """Fit both searches to the same scores and the same best map, and return ours."""
    ours, theirs = agree(*arguments, atol=3e-6, **options)
    fitted = [search.best_estimator_.transform(X) for search in (ours, theirs)]
    np.testing.assert_allclose(*fitted, rtol=1e-6)
    return ours


def test_weighted_candidates_are_trained_together(monkeypatch):
    """In blocks, for each of which the embeddings of a fold are taken anew."""
    count_members(monkeypatch, most=1)
    options = {"scoring": "neg_log_loss", "cv": 2}
    adapter = adapters.CosRegAdapter(lr=0.1, **QUICK)
    ours = same(adapter, {"lam": [-1, 3]}, X, Y, {"sample_weight": COUNTS}, **options)
    plain = AdapterSearchCV(adapter, {"lam": [-1, 3]}, refit=False, **options).fit(X, Y)
    difference = plain.cv_results_["mean_test_score"] - ours.cv_results_["mean_test_score"]
    assert np.abs(difference).min() > 1e-3


def test_step_parameters_of_a_pipeline():
    given = {f"{name}__sample_weight": COUNTS for name in ("standardscaler", "istaradapter")}
    given["istaradapter__groups"] = GROUPS
    options = {"cv": 2, "scoring": "neg_log_loss"}
    same(PIPE, {"istaradapter__lam": [-1, 3]}, X, Y, given, **options)


def test_requested_weights_and_groups():
    """Also in other workers, to which the configuration of scikit-learn is passed on."""
    given = {"sample_weight": COUNTS, "groups": GROUPS}
    with config_context(enable_metadata_routing=True), parallel_config("threading"):
        adapter = IStarAdapter(HEAD, **QUICK)
        adapter.set_fit_request(sample_weight=True, groups=True)
        adapter.set_score_request(sample_weight=True)
        pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), adapter)
        # In scikit-learn 1.7 a pipeline's score has a sample_weight of its own to request.
        pipe.set_score_request(sample_weight=True)
        grid = {"istaradapter__lam": [-1, 3]}
        same(pipe, grid, X, Y, given, cv=GroupKFold(2), n_jobs=2)


def test_folds_with_repeated_rows_side_by_side(monkeypatch):
    """As on a GPU, in one network; folds of one size have different numbers of distinct rows."""
    rows, labels = np.r_[X, X[:30]], np.r_[Y, Y[:30]]
    cv = StratifiedKFold(3, shuffle=True, random_state=0)
    sizes = {len(np.unique(rows[train], axis=0)) for train, _ in cv.split(rows, labels)}
    assert len(sizes) > 1
    calls = count_members(monkeypatch, most=100)
    options = {"cv": cv, "scoring": "neg_log_loss"}
    same(IStarAdapter(**QUICK), {"lam": [-1, 3]}, rows, labels, **options)
    assert calls == [6]
