"""``sample_weight`` and ``groups`` of a fit, passed on by searches."""

import numpy as np
import pytest
from joblib import parallel_config
from sklearn import config_context
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import CosRegAdapter, IStarAdapter, LinearHead
from isoadapt.model_selection import AdapterSearchCV
from tests.model_selection.searches import agree, count_members

X, Y = make_classification(120, 8, n_informative=5, random_state=0)
COUNTS = np.random.default_rng(0).integers(0, 4, size=120)
GROUPS = np.random.default_rng(1).integers(0, 40, size=120)
HEAD = LinearHead.from_estimator(LogisticRegression().fit(X, Y))
QUICK = {"max_epochs": 1, "batch_size": 32, "random_state": 0}
PIPE = make_pipeline(StandardScaler(), IStarAdapter(**QUICK))
pytestmark = pytest.mark.usefixtures("fixed_penalties")
LAMS = [-1, 3]


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
    adapter = CosRegAdapter(lr=1e-1, **QUICK)
    ours = same(adapter, {"lam": LAMS}, X, Y, {"sample_weight": COUNTS}, **options)
    plain = AdapterSearchCV(adapter, {"lam": LAMS}, refit=False, **options).fit(X, Y)
    difference = plain.cv_results_["mean_test_score"] - ours.cv_results_["mean_test_score"]
    assert np.abs(difference).min() > 1e-3


def test_step_parameters_of_a_pipeline():
    given = {"istaradapter__sample_weight": COUNTS, "istaradapter__groups": GROUPS}
    options = {"cv": 2, "scoring": "neg_log_loss"}
    ours = same(PIPE, {"istaradapter__lam": LAMS}, X, Y, given, **options)
    rows = StandardScaler().fit_transform(X)
    lam = ours.best_params_["istaradapter__lam"]
    alone = IStarAdapter(lam=lam, **QUICK).fit(rows, Y, COUNTS, GROUPS)
    np.testing.assert_allclose(ours.transform(X), alone.transform(rows), rtol=1e-6)


@pytest.mark.parametrize("in_pipeline", [False, True])
def test_requested_weights_and_groups(in_pipeline):
    """Also in other workers, to which the configuration of scikit-learn is passed on."""
    given = {"sample_weight": COUNTS, "groups": GROUPS}
    with config_context(enable_metadata_routing=True), parallel_config("threading"):
        adapter = IStarAdapter(HEAD, **QUICK)
        adapter.set_fit_request(sample_weight=True, groups=True)
        adapter.set_score_request(sample_weight=True)
        estimator, grid = adapter, {"lam": LAMS}
        if in_pipeline:
            scaler = StandardScaler().set_fit_request(sample_weight=False)
            estimator, grid = make_pipeline(scaler, adapter), {"istaradapter__lam": LAMS}
            # In scikit-learn 1.7 a pipeline's score has a sample_weight of its own to request.
            estimator.set_score_request(sample_weight=True)
        n_jobs = 2 if in_pipeline else None
        same(estimator, grid, X, Y, given, cv=GroupKFold(2), n_jobs=n_jobs)


def test_parameters_of_other_steps_are_fitted_one_at_a_time():
    weights = {f"{name}__sample_weight": COUNTS for name in ("standardscaler", "istaradapter")}
    with pytest.warns(UserWarning, match="parameters for other steps than the adapter"):
        same(PIPE, {"istaradapter__lam": [1]}, X, Y, weights, cv=2, alone=[2])


def test_folds_with_repeated_rows_side_by_side(monkeypatch):
    """As on a GPU, in one network; folds of one size have different numbers of distinct rows."""
    rows, labels = np.concatenate([X, X[:30]]), np.concatenate([Y, Y[:30]])
    cv = StratifiedKFold(3, shuffle=True, random_state=0)
    sizes = {len(np.unique(rows[train], axis=0)) for train, _ in cv.split(rows, labels)}
    assert len(sizes) > 1
    calls = count_members(monkeypatch, most=100)
    options = {"cv": cv, "scoring": "neg_log_loss"}
    same(IStarAdapter(**QUICK), {"lam": LAMS}, rows, labels, **options)
    assert (len(calls), sum(calls)) == (len(sizes), 6)
