"""Scikit-learn estimators as heads: they are cloned and fitted, unless they are frozen."""

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from isoadapt import LinearHead, LogitPreservingWhitening, adapters
from tests.adapters.examples import class_name

X, Y = make_classification(120, 6, n_informative=4, n_classes=3, random_state=0)
X = X * [1, 2, 3, 1, 1, 9] + 1
NAMES = np.array(["c", "a", "b"])[Y]
VALUES = X @ np.arange(6.0) + np.random.default_rng(0).normal(size=120)
ONE = {"max_epochs": 1, "random_state": 0}

LOGISTIC = LogisticRegression(C=0.01), NAMES
SEVERAL = OneVsRestClassifier(LogisticRegression()), (X > 1).astype(int)
SEARCHED = GridSearchCV(LogisticRegression(), {"C": [0.01, 1.0]}), NAMES
LASSO = MultiOutputRegressor(Lasso(alpha=0.5)), np.column_stack([VALUES, X[:, 0]])
RIDGE = Ridge(alpha=40), VALUES
KEEP = [
    (LogitPreservingWhitening(), *SEARCHED),
    (adapters.ExactIsotropyLayer(), *SEVERAL),
    (adapters.IStarAdapter(**ONE), *LOGISTIC),
    (adapters.CosRegAdapter(**ONE), *LASSO),
    (adapters.FlowAdapter(alpha=0.5, n_blocks=2, hidden=8, **ONE), *RIDGE),
    (adapters.IsoBN(head_training="frozen"), *SEVERAL),
    (adapters.ClusterIsotropy(head_training="frozen", random_state=0), *RIDGE),
]
REFIT = [
    (adapters.Whitening("pca", n_components=3), *LASSO),
    (adapters.FlowAdapter(n_blocks=2, hidden=8, **ONE), *LOGISTIC),
    (adapters.IsoBN(), *SEARCHED),
    (adapters.AllButTheTop(), *RIDGE),
    (adapters.ClusterIsotropy(random_state=0), *SEVERAL),
]


class TestUnfittedEstimator:
    @pytest.mark.parametrize(("adapter", "model", "y"), KEEP, ids=class_name)
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

    @pytest.mark.parametrize(("adapter", "model", "y"), REFIT, ids=class_name)
    def test_is_fitted_to_the_adapted_embeddings_if_the_head_is_refit(self, adapter, model, y):
        fitted = clone(adapter).set_params(head=model).fit(X, y)
        expected = clone(model).fit(fitted.transform(X), y)
        ours = LinearHead.from_estimator(expected)
        np.testing.assert_allclose(fitted.head_.coef_, ours.coef_, rtol=1e-6, atol=1e-9)
        assert fitted.score(X, y) == pytest.approx(expected.score(fitted.transform(X), y))


def test_kind_and_parameters_are_known_before_fit():
    adapter = adapters.IsotropyLayer(LogisticRegression(C=0.1))
    assert is_classifier(adapter)
    assert is_regressor(adapters.Whitening(head=Ridge()))
    assert hasattr(adapter, "predict_proba")
    assert not hasattr(adapters.IsotropyLayer(Ridge()), "predict_proba")
    assert clone(adapter).set_params(head__C=7).head.C == 7
    assert adapter.head.C == adapter.get_params()["head__C"] == 0.1


def test_fitted_estimator_is_refitted_unless_it_is_frozen():
    model = LogisticRegression().fit(X, np.roll(NAMES, 40))
    coef = model.coef_.copy()
    expected = LogitPreservingWhitening(LogisticRegression()).fit(X, NAMES)
    refitted = LogitPreservingWhitening(model).fit(X, NAMES)
    np.testing.assert_array_equal(refitted.head_.coef_, expected.head_.coef_)
    np.testing.assert_array_equal(model.coef_, coef)
    kept = clone(LogitPreservingWhitening(FrozenEstimator(model))).fit(X)
    np.testing.assert_allclose(kept.head_.coef_, coef, rtol=1e-12)


def test_invalid_heads_are_refused():
    for head, word in (
        (RandomForestClassifier(2), "is not a fitted linear model"),
        (FrozenEstimator(LogisticRegression()), "fit it first"),
        (StandardScaler(), "'head' parameter"),
    ):
        for adapter in (
            adapters.CosRegAdapter(head, **ONE),
            adapters.IsoBN(head=head, head_training="frozen"),
        ):
            with pytest.raises(ValueError, match=word):
                adapter.fit(X, NAMES)
