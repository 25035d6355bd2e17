"""Scikit-learn estimators as heads: they are cloned and fitted, unless they are frozen."""

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.cluster import KMeans
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Lars, Lasso, LogisticRegression, Ridge, RidgeClassifier
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils.validation import check_is_fitted

from isoadapt import (
    AllButTheTop,
    ClusterIsotropy,
    CosRegAdapter,
    FlowAdapter,
    IsoBN,
    IsotropyLayer,
    IStarAdapter,
    LinearHead,
    LogitPreservingWhitening,
    Whitening,
)
from isoadapt.interop import load_adapter, save_adapter
from isoadapt.model_selection import AdapterSearchCV
from tests.adapters.examples import PENALISED
from tests.model_selection.searches import agree

X, Y = make_classification(120, 6, n_informative=4, n_classes=3, random_state=0)
X = X * [1, 2, 3, 1, 1, 9] + 1
NAMES = np.array(["c", "a", "b"])[Y]
VALUES = X @ np.arange(6.0) + np.random.default_rng(0).normal(size=120)
ONE = {"max_epochs": 1, "random_state": 0}
FOLDS = StratifiedKFold(3)

KEEP = [
    IsotropyLayer(**ONE),
    IsotropyLayer(solver="exact"),
    IStarAdapter(**ONE),
    CosRegAdapter(network="mlp", **ONE),
    *(kind(**ONE) for kind in PENALISED[3:]),
    FlowAdapter(alpha=0.5, n_blocks=2, hidden=8, **ONE),
    LogitPreservingWhitening(),
    Whitening(head_training="frozen"),
    IsoBN(head_training="frozen"),
    AllButTheTop(head_training="frozen"),
    ClusterIsotropy(head_training="frozen", random_state=0),
]
REFIT = [
    FlowAdapter(n_blocks=2, hidden=8, **ONE),
    Whitening(),
    Whitening("pca", n_components=3),
    IsoBN(),
    AllButTheTop(),
    ClusterIsotropy(random_state=0),
]
LINEAR = [
    (LogisticRegression(C=0.01), NAMES),
    (OneVsRestClassifier(LogisticRegression()), NAMES),
    (OneVsRestClassifier(LogisticRegression()), (X > 1).astype(int)),
    (GridSearchCV(LogisticRegression(), {"C": [0.01, 1.0]}), NAMES),
    (MultiOutputRegressor(Lasso(alpha=0.5)), np.column_stack([VALUES, X[:, 0]])),
    (RidgeClassifier(alpha=30), NAMES == "a"),
    (Ridge(alpha=40), VALUES),
    (Ridge(alpha=40), np.column_stack([VALUES, X[:, 0]])),
    (Lasso(alpha=0.5), VALUES),
]


def class_name(value):
    return type(value).__name__ if hasattr(value, "fit") else None


@pytest.mark.parametrize(("model", "y"), LINEAR, ids=class_name)
class TestUnfittedEstimator:
    @pytest.mark.parametrize("adapter", KEEP, ids=class_name)
    def test_is_fitted_to_the_embeddings_and_then_frozen(self, adapter, model, y):
        frozen = FrozenEstimator(clone(model).fit(X, y))
        # With a validation split, the head would be fitted to the training rows only.
        fitted = clone(adapter).set_params(head=model)
        if hasattr(adapter, "validation_fraction"):
            fitted.set_params(validation_fraction=None)
        expected = clone(fitted).set_params(head=frozen).fit(X, y)
        fitted.fit(X, y)
        np.testing.assert_allclose(fitted.head_.coef_, expected.head_.coef_, rtol=1e-9)
        np.testing.assert_array_equal(fitted.predict(X), expected.predict(X))
        assert fitted.head is model
        with pytest.raises(NotFittedError):
            check_is_fitted(model)

    @pytest.mark.parametrize("adapter", REFIT, ids=class_name)
    def test_is_fitted_to_the_adapted_embeddings_if_the_head_is_refit(self, adapter, model, y):
        fitted = clone(adapter).set_params(head=model).fit(X, y)
        expected = clone(model).fit(fitted.transform(X), y)
        ours = LinearHead.from_estimator(expected)
        np.testing.assert_allclose(fitted.head_.coef_, ours.coef_, rtol=1e-6, atol=1e-9)
        assert fitted.score(X, y) == pytest.approx(expected.score(fitted.transform(X), y))


def test_kind_and_parameters_are_known_before_fit():
    adapter = IsotropyLayer(LogisticRegression(C=0.1))
    assert is_classifier(adapter)
    assert is_regressor(Whitening(head=Ridge()))
    assert hasattr(adapter, "predict_proba")
    assert not hasattr(IsotropyLayer(Ridge()), "predict_proba")
    assert adapter.get_params()["head__C"] == 0.1
    assert clone(adapter).set_params(head__C=7).head.C == 7
    assert adapter.head.C == 0.1


@pytest.mark.parametrize("adapter", [IsotropyLayer(**ONE), LogitPreservingWhitening(), Whitening()])
def test_cross_validation_fits_the_head_to_the_training_rows_of_each_fold(adapter):
    adapter = clone(adapter).set_params(head=LogisticRegression(C=0.1))
    ours = cross_val_predict(adapter, X, Y, cv=FOLDS, method="predict_proba")
    for train, test in FOLDS.split(X, Y):
        by_hand = clone(adapter).fit(X[train], Y[train])
        np.testing.assert_allclose(ours[test], by_hand.predict_proba(X[test]), atol=1e-9)
    seen_all = clone(adapter).set_params(head=FrozenEstimator(LogisticRegression(C=0.1).fit(X, Y)))
    leaked = cross_val_predict(seen_all, X, Y, cv=FOLDS, method="predict_proba")
    if not isinstance(adapter, Whitening):  # Whitening fits a new head in any case
        assert np.abs(ours - leaked).max() > 1e-2


def test_searches_set_parameters_of_the_head():
    pipeline = make_pipeline(StandardScaler(), IStarAdapter(LogisticRegression(), **ONE))
    grid = {"istaradapter__head__C": [1e-4, 1.0], "istaradapter__lam": [-1, 1]}
    options = {"cv": FOLDS, "scoring": "neg_log_loss", "atol": 1e-5}
    together, _ = agree(pipeline, grid, X, NAMES, **options)
    assert np.ptp(together.cv_results_["mean_test_score"]) > 0.1
    assert together.best_params_["istaradapter__head__C"] == 1.0
    assert together.best_estimator_[-1].head_.coef_.shape == (3, 6)


def test_equal_unfitted_heads_are_trained_together():
    first, second = (IStarAdapter(LogisticRegression(C=0.1), lam=lam) for lam in (1, 2))
    assert first._batch_key() == second._batch_key() == clone(first)._batch_key()
    assert first._batch_key() != IStarAdapter(LogisticRegression(C=0.2))._batch_key()
    assert first._batch_key() != IStarAdapter(RidgeClassifier())._batch_key()


def test_fitted_estimator_is_refitted_unless_it_is_frozen():
    model = LogisticRegression().fit(X, np.roll(NAMES, 40))
    coef = model.coef_.copy()
    expected = LogitPreservingWhitening(LogisticRegression()).fit(X, NAMES)
    for adapter in (LogitPreservingWhitening(model), clone(LogitPreservingWhitening(model))):
        np.testing.assert_array_equal(adapter.fit(X, NAMES).head_.coef_, expected.head_.coef_)
    np.testing.assert_array_equal(model.coef_, coef)
    kept = clone(LogitPreservingWhitening(FrozenEstimator(model))).fit(X)
    np.testing.assert_array_equal(kept.head_.coef_, coef)
    with pytest.raises(ValueError, match="requires y to be passed"):
        LogitPreservingWhitening(model).fit(X)


def test_sample_weight_is_passed_to_the_head_or_refused():
    weights = np.random.default_rng(0).integers(0, 3, 120)
    repeated = np.repeat(np.arange(120), weights)
    adapter = Whitening(head=Ridge(alpha=9))
    weighted = clone(adapter).fit(X, VALUES, sample_weight=weights)
    again = clone(adapter).fit(X[repeated], VALUES[repeated])
    np.testing.assert_allclose(weighted.predict(X), again.predict(X), rtol=1e-8)
    with pytest.raises(ValueError, match=r"head=Lars\(\) does not take it in fit"):
        Whitening(head=Lars()).fit(X, VALUES, sample_weight=weights)
    with pytest.raises(AttributeError, match="partial_fit"):
        Whitening(head=Ridge()).partial_fit(X)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (RandomForestClassifier(2), "has no coef_ with one row for each of its outputs"),
        (make_pipeline(StandardScaler(), LogisticRegression()), "without a Pipeline"),
        (SVC(kernel="linear"), "does not predict as a head does"),
        (KMeans(2), r"neither a classifier nor a regressor by its tags .*'clusterer'"),
        (FrozenEstimator(LogisticRegression()), "has no coef_ .*fit it first"),
        (StandardScaler(), "must be a str among"),
        (Ridge(), "could not convert string to float"),
    ],
    ids=class_name,
)
@pytest.mark.parametrize("adapter", [CosRegAdapter(**ONE), LogitPreservingWhitening(), IsoBN()])
def test_invalid_heads_are_refused(adapter, head, message):
    adapter = clone(adapter)
    adapter.head = head
    if isinstance(head, FrozenEstimator) and isinstance(adapter, IsoBN):
        adapter.head_training = "frozen"
    with pytest.raises(ValueError, match=message):
        adapter.fit(X, NAMES)


@pytest.mark.parametrize("adapter", [CosRegAdapter(**ONE), LogitPreservingWhitening(), IsoBN()])
def test_saved_adapter_contains_the_fitted_head(adapter, tmp_path):
    adapter = clone(adapter).set_params(head=LogisticRegression(C=0.1)).fit(X, NAMES)
    loaded = load_adapter(save_adapter(adapter, tmp_path / "a"))
    assert isinstance(loaded.head, LinearHead)
    np.testing.assert_array_equal(loaded.predict_proba(X), adapter.predict_proba(X))
    assert loaded.classes_.tolist() == ["a", "b", "c"]


def test_search_accepts_bfloat16_tensors():
    rows = torch.from_numpy(X).bfloat16()
    grid = {"lam": [1, 2]}
    ours = AdapterSearchCV(CosRegAdapter(**ONE), grid, cv=2).fit(rows, Y)
    floats = AdapterSearchCV(CosRegAdapter(**ONE), grid, cv=2).fit(rows.float().numpy(), Y)
    assert ours.unbatched_ == {}
    wanted = floats.cv_results_["mean_test_score"]
    np.testing.assert_array_equal(ours.cv_results_["mean_test_score"], wanted)
