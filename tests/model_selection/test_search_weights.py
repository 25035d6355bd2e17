"""``sample_weight`` and ``groups`` of a fit, passed on by pipelines and searches."""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import GroupKFold, StratifiedKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import CosRegAdapter, IStarAdapter, LinearHead
from isoadapt.model_selection import AdapterSearchCV
from tests.model_selection.searches import agree, count_members

X, Y = make_classification(240, 8, n_informative=5, random_state=0)
COUNTS = np.random.default_rng(0).integers(0, 4, size=240)
GROUPS = np.random.default_rng(1).integers(0, 40, size=240)
HEAD = LinearHead.from_estimator(LogisticRegression().fit(X, Y))
QUICK = {"max_epochs": 2, "batch_size": 32, "random_state": 0}
pytestmark = pytest.mark.usefixtures("fixed_penalties")
LAMS = [-1, 1, 3]


@pytest.fixture
def routing():
    with config_context(enable_metadata_routing=True):
        yield


def same(*arguments, **options):
    """Fit both searches to the same scores and the same best map, and return ours."""
    ours, theirs = agree(*arguments, atol=3e-6, **options)
    fitted = [search.best_estimator_.transform(X) for search in (ours, theirs)]
    np.testing.assert_allclose(*fitted, rtol=1e-6)
    return ours


def test_cross_validate_passes_on_the_rows_of_each_fold(routing):
    adapter = IStarAdapter(**QUICK).set_fit_request(sample_weight=True, groups=True)
    scorer = make_scorer(accuracy_score).set_score_request(sample_weight=True)
    cv, given = GroupKFold(3), {"sample_weight": COUNTS, "groups": GROUPS}
    found = cross_validate(adapter, X, Y, cv=cv, scoring=scorer, params=given)["test_score"]
    for score, (train, test) in zip(found, cv.split(X, Y, GROUPS), strict=True):
        fitted = IStarAdapter(**QUICK).fit(X[train], Y[train], COUNTS[train], GROUPS[train])
        assert score == fitted.score(X[test], Y[test], sample_weight=COUNTS[test])


def test_weighted_candidates_are_trained_together():
    options = {"scoring": "neg_log_loss", "cv": 3}
    adapter = CosRegAdapter(lr=1e-2, **QUICK)
    ours = same(adapter, {"lam": LAMS}, X, Y, {"sample_weight": COUNTS}, **options)
    plain = AdapterSearchCV(adapter, {"lam": LAMS}, **options).fit(X, Y)
    difference = plain.cv_results_["mean_test_score"] - ours.cv_results_["mean_test_score"]
    assert np.abs(difference).min() > 1e-3


def test_step_parameters_of_a_pipeline():
    pipe = make_pipeline(StandardScaler(), IStarAdapter(**QUICK))
    given = {"istaradapter__sample_weight": COUNTS, "istaradapter__groups": GROUPS}
    ours = same(pipe, {"istaradapter__lam": LAMS}, X, Y, given, cv=3, scoring="neg_log_loss")
    rows = StandardScaler().fit_transform(X)
    lam = ours.best_params_["istaradapter__lam"]
    alone = IStarAdapter(lam=lam, **QUICK).fit(rows, Y, COUNTS, GROUPS)
    np.testing.assert_allclose(ours.transform(X), alone.transform(rows), rtol=1e-6)


@pytest.mark.parametrize("in_pipeline", [False, True])
def test_requested_weights_and_groups(routing, in_pipeline):
    adapter = IStarAdapter(HEAD, **QUICK)
    adapter.set_fit_request(sample_weight=True, groups=True)
    adapter.set_score_request(sample_weight=True)
    estimator, grid = adapter, {"lam": LAMS}
    if in_pipeline:
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        estimator, grid = make_pipeline(scaler, adapter), {"istaradapter__lam": LAMS}
        # In scikit-learn 1.7 a pipeline's score has a sample_weight of its own to request.
        estimator.set_score_request(sample_weight=True)
    given = {"sample_weight": COUNTS, "groups": GROUPS}
    same(estimator, grid, X, Y, given, cv=GroupKFold(3))


def test_parameters_of_other_steps_are_fitted_one_at_a_time():
    pipe = make_pipeline(StandardScaler(), IStarAdapter(**QUICK))
    weights = {f"{name}__sample_weight": COUNTS for name in ("standardscaler", "istaradapter")}
    with pytest.warns(UserWarning, match="parameters for other steps than the adapter"):
        same(pipe, {"istaradapter__lam": [1]}, X, Y, weights, cv=2, alone=[2])


@pytest.mark.parametrize("name", ["counts", "istaradapter__counts", "nostep__sample_weight"])
def test_parameters_that_fit_does_not_take_are_refused_as_ever(name):
    estimator, grid = IStarAdapter(**QUICK), {"lam": [1]}
    if "__" in name:
        estimator, grid = make_pipeline(StandardScaler(), estimator), {"istaradapter__lam": [1]}
    with (
        pytest.warns(UserWarning, match="one at a time"),
        pytest.raises(ValueError, match="fits failed"),
    ):
        AdapterSearchCV(estimator, grid, cv=3).fit(X, Y, **{name: COUNTS})


def test_folds_with_repeated_rows_side_by_side(monkeypatch):
    """As on a GPU, in one network; folds of one size have different numbers of distinct rows."""
    rows, labels = np.concatenate([X, X[:60]]), np.concatenate([Y, Y[:60]])
    cv = StratifiedKFold(3, shuffle=True, random_state=0)
    sizes = {len(np.unique(rows[train], axis=0)) for train, _ in cv.split(rows, labels)}
    assert len(sizes) > 1
    calls = count_members(monkeypatch, most=100)
    options = {"cv": cv, "scoring": "neg_log_loss"}
    same(IStarAdapter(**QUICK), {"lam": LAMS}, rows, labels, **options)
    assert (len(calls), sum(calls)) == (len(sizes), 9)


def test_blocks_of_candidates_share_weighted_rows(monkeypatch):
    """The embeddings of a fold are taken anew for each block."""
    count_members(monkeypatch, most=2)
    options = {"cv": 3, "scoring": "neg_log_loss"}
    same(IStarAdapter(**QUICK), {"lam": LAMS}, X, Y, {"sample_weight": COUNTS}, **options)
