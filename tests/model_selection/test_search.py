"""AdapterSearchCV: against GridSearchCV, fit by fit; what is encoded, interrupted, refused."""

import io

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.datasets import make_classification, make_regression
from sklearn.decomposition import PCA
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, ParameterGrid, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

from isoadapt import (
    CosRegAdapter,
    FlowAdapter,
    IsotropyLayer,
    IStarAdapter,
    LinearHead,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
    Whitening,
)
from isoadapt.adapters import _together
from isoadapt.adapters._together import fit_together, prepare
from isoadapt.adapters._training._loop import AdapterNet
from isoadapt.model_selection import (
    AdapterSearchCV,
    BestAboveFloor,
    make_isotropy_scorer,
)
from isoadapt.model_selection._search import _adapter_search as module, _evaluation
from tests.model_selection.searches import agree, assert_same_results


def labelled(n):
    X, y = make_classification(n, 12, n_informative=6, n_classes=3, random_state=0)
    return X @ np.random.default_rng(0).normal(size=(12, 12)) + 2, y


X, Y = labelled(400)
MANY = labelled(1200)  # enough that a row more or less is no 0.3 points
HEAD = LinearHead.from_estimator(LogisticRegression(max_iter=1000).fit(X, Y))
QUICK = {"max_epochs": 2, "random_state": 0}


pytestmark = pytest.mark.usefixtures("fixed_penalty")


def one_by_one(adapter, grid, X=X, y=Y):
    return [clone(adapter).set_params(**point).fit(X, y) for point in ParameterGrid(grid)]


def at_once(adapter, grid, X=X, y=Y):
    adapters = [clone(adapter).set_params(**point) for point in ParameterGrid(grid)]
    prepared = {each.random_state: prepare(each, X, y) for each in adapters}
    assert len({each._batch_key() for each in adapters}) == 1
    shared = [prepared[each.random_state] for each in adapters]
    assert not any(fit_together(adapters, shared, lambda _: None))
    return adapters


KINDS = [
    (IStarAdapter(HEAD), {"lam": [-1, 3], "zeta": [0.2, 0.8]}),
    (IStarAdapter(HEAD, coordinates="raw"), {"lam": [-1, 3], "zeta": [0.2, 0.8]}),
    (IStarAdapter(HEAD, zeta=0.0, bias_corrected=True), {"lam": [-1, 3], "lr": [5e-4, 1e-3]}),
    (IStarAdapter(HEAD, shrinkage="detached"), {"lam": [-1, 3], "zeta": [0.2, 0.8]}),
    (IStarAdapter(HEAD, network="mlp"), {"zeta": [0.2, 0.8], "random_state": [0, 1]}),
    (IsotropyLayer(HEAD), {"alpha": [0.2, 0.9], "random_state": [0, 1]}),
    (IsotropyLayer(HEAD, lr=1e-3), {"smoothing": [0.05, 1.0], "weight_decay": [0, 0.1]}),
    (IsotropyLayer(HEAD, head_training="joint"), {"alpha": [0.2, 0.9], "weight_decay": [0, 0.1]}),
    (IsotropyLayer(HEAD, head_training="alternating"), {"lr": [5e-4, 1e-3], "alpha": [0.2, 0.9]}),
    (CosRegAdapter(HEAD), {"lam": [-1, 0, 2]}),
    (SpectrumControlAdapter(HEAD), {"lam": [0, 1, 2]}),
    (SpectrumControlAdapter(HEAD, network="mlp"), {"lam": [0, 1], "lr": [5e-4, 1e-3]}),
    (TopologicalEntropyAdapter(HEAD), {"lam": [-1, 1], "random_state": [0, 1]}),
    (IStarAdapter(None), {"lam": [-1, 3]}),
]


@pytest.mark.parametrize(("adapter", "grid"), KINDS, ids=lambda part: " ".join(str(part).split()))
class TestTrainingTogether:
    def test_one_epoch_gives_the_weights_of_each_alone(self, adapter, grid):
        adapter = clone(adapter).set_params(max_epochs=1, validation_fraction=None, random_state=0)
        pairs = zip(at_once(adapter, grid), one_by_one(adapter, grid), strict=True)
        for ours, alone in pairs:
            difference = np.linalg.norm(ours.transform(X) - alone.transform(X))
            assert difference <= 1e-4 * np.linalg.norm(alone.transform(X))
            assert ours.history_[0]["train_loss"] == pytest.approx(
                alone.history_[0]["train_loss"], rel=1e-4, abs=1e-5
            )

    @pytest.mark.filterwarnings("ignore:training ended at max_epochs")
    def test_scores_and_the_epochs_kept_are_those_of_each_alone(self, adapter, grid):
        adapter = clone(adapter).set_params(max_epochs=3, batch_size=256, random_state=0)
        pairs = zip(at_once(adapter, grid, *MANY), one_by_one(adapter, grid, *MANY), strict=True)
        for ours, alone in pairs:
            assert (ours.n_iter_, ours.best_epoch_) == (alone.n_iter_, alone.best_epoch_)
            assert ours.score(*MANY) == pytest.approx(alone.score(*MANY), abs=3e-3)
            scores = [[epoch["valid_score"] for epoch in each.history_] for each in (ours, alone)]
            np.testing.assert_allclose(*scores, atol=3e-3)


def log_likelihood(head, outputs, y):
    """scikit-learn's neg_log_loss of logits and classes 0, 1, ..., without its checks."""
    return np.mean(outputs[np.arange(len(y)), y] - logsumexp(outputs, axis=1))


STOPPING = {"patience": 2, "lr": 0.3, "lr_schedule": "constant", "ridge": 0.0, "random_state": 0}
STOPPING |= {"scoring": log_likelihood}


@pytest.mark.filterwarnings("ignore:this fit harms the task")
@pytest.mark.parametrize("lams", [[-3, 5], [0, 5, -1]])
def test_members_stop_when_they_would_alone_and_the_others_go_on(lams):
    adapter = IStarAdapter(HEAD, max_epochs=10, **STOPPING)
    grid = {"lam": lams, "random_state": [0, 1]}
    pairs = list(zip(at_once(adapter, grid), one_by_one(adapter, grid), strict=True))
    assert len({ours.n_iter_ for ours, _ in pairs}) > 1
    for ours, alone in pairs:
        assert (ours.n_iter_, ours.best_epoch_) == (alone.n_iter_, alone.best_epoch_)
        difference = np.linalg.norm(ours.map_.matrix - alone.map_.matrix)
        assert difference <= 1e-4 * np.linalg.norm(alone.map_.matrix)


def test_members_that_stop_drop_out(monkeypatch):
    """The stopped ones cost nothing any more: later batches hold the others only."""
    widths = []
    step = AdapterNet.train_step

    def counted(net, batch, **kwargs):
        widths.append(len(net.module_.network.weight))
        return step(net, batch, **kwargs)

    monkeypatch.setattr(AdapterNet, "train_step", counted)
    adapter = IStarAdapter(HEAD, max_epochs=12, **STOPPING)
    adapters = at_once(adapter, {"lam": [-3, 5], "random_state": [0, 1]})
    epochs = [each.n_iter_ for each in adapters]
    assert len(set(epochs)) > 1
    n_batches = -(-280 // 64)
    assert sum(widths) == n_batches * sum(epochs)


GRID = {"lam": [-1, 0.5, 2], "zeta": [0.2, 0.8]}


@pytest.fixture(scope="module")
def plain():
    """GridSearchCV of the adapter and grid that several tests share; do not change it."""
    return GridSearchCV(IStarAdapter(HEAD, **QUICK), GRID, cv=3).fit(X, Y)


class TestAgainstGridSearchCV:
    @pytest.mark.parametrize(
        ("adapter", "grid"),
        [
            (IStarAdapter(HEAD, **QUICK), {"lam": [-1, 2], "zeta": [0.2, 0.8], "lr": [1e-3, 1e-2]}),
            (IStarAdapter(**QUICK), {"lam": [-1, 2], "zeta": [0.0, 0.5]}),
            (IsotropyLayer(**QUICK), {"alpha": [0.3, 1.0], "batch_size": [32, 64]}),
            (SpectrumControlAdapter(HEAD, **QUICK), [{"lam": [0, 1]}, {"network": ["mlp"]}]),
            (TopologicalEntropyAdapter(**QUICK), {"random_state": [0, 1]}),
            (IStarAdapter(None, **QUICK), {"lam": [-1, 2]}),
        ],
    )
    def test_adapter_alone(self, adapter, grid):
        ours, theirs = agree(adapter, grid, X, Y, cv=2, return_train_score=True)
        assert ours.best_params_ in theirs.cv_results_["params"]
        assert type(ours.best_estimator_) is type(theirs.best_estimator_)
        np.testing.assert_allclose(
            clone(adapter).set_params(**ours.best_params_).fit(X, Y).transform(X),
            ours.transform(X),
        )

    def test_values_of_a_regression(self):
        X, y = make_regression(200, 8, noise=20.0, random_state=0)
        adapter = IStarAdapter("ridge", **QUICK)
        agree(adapter, GRID, X, y, cv=3)

    def test_pipeline_fits_the_steps_before_the_adapter_in_each_fold(self):
        pipe = make_pipeline(StandardScaler(), PCA(8), IStarAdapter(**QUICK))
        grid = {"istaradapter__lam": [-1, 1], "pca__n_components": [4, 8]}
        ours, _ = agree(pipe, grid, X, Y, cv=3)
        assert ours.predict(X).shape == Y.shape
        assert [name for name, _ in ours.best_estimator_.steps] == list(pipe.named_steps)

    def test_steps_that_cannot_be_pickled_are_told_apart(self):
        pipe = make_pipeline(
            FunctionTransformer(lambda X: X + 1, validate=True),
            StandardScaler(),
            FunctionTransformer(lambda X: X - 1),
            PCA(8),
            IStarAdapter(None, **QUICK),
        )
        agree(pipe, {"pca__n_components": list(range(2, 12))}, X, Y, cv=2)

    def test_leading_step_may_be_passed_through(self):
        pipe = Pipeline([("scale", Normalizer()), ("adapter", IStarAdapter(**QUICK))])
        agree(pipe, {"scale": ["passthrough", Normalizer()]}, X, Y, cv=2)

    def test_groups_frames_and_several_metrics(self):
        frame = pd.DataFrame(X, columns=[f"e{i}" for i in range(12)])
        groups = np.arange(400) % 7
        scoring = {"accuracy": "accuracy", "isoscore": make_isotropy_scorer()}
        options = {"cv": GroupKFold(3), "scoring": scoring, "refit": "accuracy"}
        given = {"groups": groups}
        ours, theirs = agree(IStarAdapter(HEAD, **QUICK), GRID, frame, Y, given, **options)
        assert ours.multimetric_
        assert list(ours.feature_names_in_) == list(theirs.feature_names_in_)
        assert ours.best_score_ == ours.cv_results_["mean_test_accuracy"].max()

    def test_folds_of_different_sizes(self):
        folds = [(np.arange(k, 400), np.arange(k)) for k in (60, 61, 100)]
        agree(IStarAdapter(HEAD, **QUICK), GRID, X, Y, cv=folds)

    def test_folds_side_by_side(self, monkeypatch):
        """As on a GPU: members of several folds in one network."""
        monkeypatch.setattr(_evaluation.Group, "limits", lambda self: (100, 9))
        calls = count_members(monkeypatch)
        agree(IStarAdapter(**QUICK), {"lam": [-1, 2]}, X, Y, cv=StratifiedKFold(3))
        assert sum(calls) == 6
        assert max(calls) > 2

    def test_clone_parameters_and_no_refit(self):
        search = AdapterSearchCV(IStarAdapter(**QUICK), GRID, cv=2, refit=False).fit(X, Y)
        assert not hasattr(search, "best_estimator_")
        assert search.best_params_ in search.cv_results_["params"]
        search = AdapterSearchCV(IStarAdapter(lam=2.0), GRID, max_memory=10**9)
        assert clone(search).get_params()["max_memory"] == 10**9
        assert search.get_params()["estimator__lam"] == 2.0


def count_members(monkeypatch, limit=None):
    """Note how many members each network has; more than `limit` run out of memory."""
    calls = []

    def counted(adapters, *arguments):
        calls.append(len(adapters))
        if limit is not None and len(adapters) > limit:
            raise MemoryError
        return fit_members(adapters, *arguments)

    fit_members = _together.fit_members
    monkeypatch.setattr(_together, "fit_members", counted)
    return calls


class TestMemory:
    @pytest.mark.parametrize(("bound", "most"), [(1, 1), (130_000, 2), (None, 12)])
    def test_bound_decides_how_many_members_a_network_has(self, monkeypatch, plain, bound, most):
        calls = count_members(monkeypatch)
        search = AdapterSearchCV(IStarAdapter(HEAD, **QUICK), GRID, cv=3, max_memory=bound)
        assert_same_results(search.fit(X, Y), plain)
        assert max(calls) == most
        assert sum(calls) == 18

    def test_candidates_come_before_folds(self, monkeypatch, plain):
        """Those on the same fold share its rows."""
        calls = count_members(monkeypatch)
        monkeypatch.setattr(_evaluation.Group, "limits", lambda self: (4, 9))
        assert_same_results(
            AdapterSearchCV(IStarAdapter(HEAD, **QUICK), GRID, cv=3).fit(X, Y), plain
        )
        assert calls == [3] * 6

    def test_failing_memory_halves_the_chunk(self, monkeypatch, plain):
        calls = count_members(monkeypatch, limit=2)
        ours = AdapterSearchCV(IStarAdapter(HEAD, **QUICK), GRID, cv=3).fit(X, Y)
        assert_same_results(ours, plain)
        assert ours.unbatched_ == {}
        assert sum(size for size in calls if size <= 2) >= 18
        assert max(calls) > 2


class TestWhatCannotBeTrainedTogether:
    @pytest.mark.parametrize(
        ("adapter", "grid", "word"),
        [
            (Whitening(head="logistic"), {"strength": [0.5, 1.0]}, "Whitening"),
            (IsotropyLayer(HEAD, solver="exact"), {"ridge": [1e-2, 1e-1]}, "exact"),
            (FlowAdapter(HEAD, max_epochs=1, random_state=0), {"n_blocks": [1, 2]}, "Flow"),
        ],
    )
    def test_is_done_one_by_one_and_said(self, adapter, grid, word):
        with pytest.warns(UserWarning, match=f"4 of 4 fits .*{word}"):
            agree(adapter, grid, X, Y, cv=2, alone=[4])

    def test_part_of_a_grid(self):
        grid = [{"lam": [0.5, 1]}, {"solver": ["exact"], "zeta": [0.0]}]
        with (
            joblib.parallel_config("threading"),  # new processes would have to import everything
            pytest.warns(UserWarning, match="3 of 9 fits"),
        ):
            ours = AdapterSearchCV(IStarAdapter(HEAD, **QUICK), grid, cv=3, n_jobs=2).fit(X, Y)
        assert_same_results(ours, GridSearchCV(IStarAdapter(HEAD, **QUICK), grid, cv=3).fit(X, Y))

    def test_fits_that_fail_have_nan_and_do_not_take_others_along(self):
        grid = {"lam": [0.5, 1.0], "lr": [1e-3, 1e38]}
        with pytest.warns() as caught:
            ours = AdapterSearchCV(IStarAdapter(HEAD, **QUICK), grid, cv=3).fit(X, Y)
        assert any(issubclass(each.category, FitFailedWarning) for each in caught)
        failed = [parameters["lr"] > 1 for parameters in ours.cv_results_["params"]]
        np.testing.assert_array_equal(np.isnan(ours.cv_results_["mean_test_score"]), failed)
        assert ours.best_params_["lr"] == 1e-3

    @pytest.mark.parametrize(
        "grid",
        [
            {"pca__n_components": [4, 100], "adapter__lam": [0, 1]},
            {"adapter__device": ["cpu", "nonsense"]},
            {"adapter__validation_fraction": [0.3, "x"]},
        ],
    )
    @pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
    @pytest.mark.filterwarnings("ignore:[0-9]+ of [0-9]+ fits could not be trained together")
    def test_a_bad_candidate_leaves_the_others_alone(self, grid):
        pipe = Pipeline([("pca", PCA(6)), ("adapter", IStarAdapter(**QUICK))])
        with pytest.warns(FitFailedWarning):
            ours, _ = agree(pipe, grid, X, Y, cv=2, alone=None)
        assert np.isnan(ours.cv_results_["mean_test_score"]).any()
        assert ours.best_score_ > 0.4

    @pytest.mark.parametrize(("grid", "cv"), [([], 3), (GRID, [])])
    def test_nothing_to_fit(self, grid, cv):
        with pytest.raises(ValueError, match="nothing to fit"):
            AdapterSearchCV(IStarAdapter(HEAD), grid, cv=cv).fit(X, Y)

    def test_error_score_raise(self):
        search = AdapterSearchCV(IStarAdapter(HEAD, **QUICK), {"lr": [1e38]}, error_score="raise")
        with pytest.raises(ValueError, match="diverged"):
            search.fit(X, Y)

    def test_misspelt_names_are_told_before_any_work(self, monkeypatch):
        monkeypatch.setattr(module, "Evaluation", None)
        scoring = {"accuracy": "accuracy", "iso": make_isotropy_scorer()}
        refit = BestAboveFloor("accuracy", "isoscore", floor=0.5)
        search = AdapterSearchCV(IStarAdapter(HEAD), GRID, scoring=scoring, refit=refit)
        with pytest.raises(ValueError, match=r"isoscore.*'accuracy', 'iso'"):
            search.fit(X, Y)
        pipe = make_pipeline(Normalizer(), IStarAdapter(HEAD))
        with pytest.raises(ValueError, match="Invalid parameter 'lamb'"):
            AdapterSearchCV(pipe, {"istaradapter__lamb": [1]}).fit(X, Y)

    def test_scores_of_different_metrics_are_not_compared(self):
        grid = {"head": [HEAD, None]}
        message = r"\(accuracy, the score of an estimator without a head\): pass a scoring="
        with pytest.raises(ValueError, match=message):
            AdapterSearchCV(IStarAdapter(**QUICK), grid).fit(X, Y)
        search = AdapterSearchCV(IStarAdapter(**QUICK), grid, scoring=make_isotropy_scorer(), cv=2)
        assert search.fit(X, Y).best_params_["head"] in (HEAD, None)

    def test_bad_parameters_are_named(self):
        with pytest.raises(ValueError, match="nonsense"):
            AdapterSearchCV(IStarAdapter(HEAD), {"nonsense": [1]}).fit(X, Y)
        with pytest.raises(ValueError, match="max_memory"):
            AdapterSearchCV(IStarAdapter(HEAD), GRID, max_memory=0).fit(X, Y)
        with pytest.raises(ValueError, match="zeta"):
            AdapterSearchCV(IStarAdapter(HEAD), {"zeta": [7.0]}, error_score="raise").fit(X, Y)


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
class TestInterrupt:
    def interrupted(self, monkeypatch, after, **options):
        scored = _evaluation.Evaluation._score
        count = []

        def score(self, *arguments):
            count.append(1)
            if len(count) > after:
                raise KeyboardInterrupt
            return scored(self, *arguments)

        monkeypatch.setattr(_evaluation.Evaluation, "_score", score)
        monkeypatch.setattr(_evaluation.Group, "limits", lambda self: (2, 9))
        return AdapterSearchCV(IStarAdapter(HEAD, **QUICK), GRID, cv=3, **options)

    def test_returns_what_is_done(self, monkeypatch, plain):
        search = self.interrupted(monkeypatch, after=6)
        with pytest.warns(UserWarning, match="interrupted: 2 of 6 candidates"):
            search.fit(X, Y)
        scores = search.cv_results_["mean_test_score"]
        np.testing.assert_allclose(scores[:2], plain.cv_results_["mean_test_score"][:2], atol=3e-3)
        assert np.isnan(scores[2:]).all()
        assert search.best_index_ in (0, 1)
        assert search.predict(X).shape == Y.shape

    def test_comes_through_where_nothing_is_done(self, monkeypatch):
        search = self.interrupted(monkeypatch, after=2)
        with pytest.raises(KeyboardInterrupt):
            search.fit(X, Y)
        assert not hasattr(search, "cv_results_")

    def test_leaves_the_search_as_it_was_if_the_last_fit_is_interrupted(self, monkeypatch):
        search = AdapterSearchCV(IStarAdapter(HEAD, **QUICK), {"zeta": [0.2, 0.8]}, cv=2).fit(X, Y)
        before = dict(vars(search))

        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(AdapterSearchCV, "_refit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            search.fit(X, Y)
        assert vars(search).keys() == before.keys()
        assert all(vars(search)[name] is value for name, value in before.items())


def test_progress_bar_counts_every_fit(monkeypatch):
    bars = []

    class Bar(module.tqdm):
        def __init__(self, **options):
            super().__init__(**options | {"disable": False, "file": io.StringIO()})
            bars.append((self, options["disable"]))

    monkeypatch.setattr(module, "tqdm", Bar)
    grid = [{"lam": [-1, 1]}, {"solver": ["exact"], "zeta": [0.0]}]
    with pytest.warns(UserWarning, match="exact"):
        AdapterSearchCV(IStarAdapter(HEAD, **QUICK), grid, cv=3).fit(X, Y)
    assert [(bar.total, bar.n, disabled) for bar, disabled in bars] == [(9, 9, True)]
