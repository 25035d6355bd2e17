"""LinearHead predicts like the model it was taken from and cannot be changed."""

import copy
import pickle
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix, issparse
from sklearn.base import BaseEstimator, TransformerMixin, clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.cross_decomposition import CCA, PLSRegression
from sklearn.datasets import make_classification
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier, VotingRegressor
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import (
    GammaRegressor,
    HuberRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    MultiTaskElasticNet,
    Perceptron,
    PoissonRegressor,
    RANSACRegressor,
    Ridge,
    RidgeClassifier,
    RidgeClassifierCV,
    RidgeCV,
    SGDClassifier,
    TweedieRegressor,
)
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    get_scorer,
    log_loss,
    make_scorer,
    r2_score,
)
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.multioutput import (
    ClassifierChain,
    MultiOutputClassifier,
    MultiOutputRegressor,
    RegressorChain,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR, OneClassSVM
from sklearn.utils.validation import check_is_fitted

from isoadapt import LinearHead, LogitPreservingWhitening
from isoadapt.adapters._heads import fit_head
from isoadapt.adapters._linalg import row_space
from isoadapt.adapters._rows import fold_numbers

NAMES = np.array(["ant", "bee", "cat", "dog"])


def labelled(n_classes, seed=0):
    X, y = make_classification(
        150, 6, n_informative=5, n_redundant=0, n_classes=n_classes, random_state=seed
    )
    return X, NAMES[y]


def head(n_classes=3, n_features=4, seed=0, classes=None):
    rng = np.random.default_rng(seed)
    coef, intercept = rng.normal(size=(n_classes, n_features)), rng.normal(size=n_classes)
    return LinearHead(coef, intercept, NAMES[:n_classes] if classes is None else classes)


def regressor(n_outputs=1):
    rng = np.random.default_rng(0)
    return LinearHead(rng.normal(size=(n_outputs, 4)), rng.normal(size=n_outputs))


X4 = np.random.default_rng(1).normal(size=(20, 4))


# The same predictions as the model it came from.


@pytest.mark.parametrize("wrap", [lambda e: e, FrozenEstimator])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3, 4])
def test_logistic_regression_is_taken_over_exactly(n_classes, fit_intercept, wrap):
    X, y = labelled(n_classes)
    model = LogisticRegression(fit_intercept=fit_intercept).fit(X, y)
    ours = LinearHead.from_estimator(wrap(model))
    assert ours.coef_.shape == (n_classes, 6)
    np.testing.assert_array_equal(ours.predict(X), model.predict(X))
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        theirs = getattr(model, method)(X)
        np.testing.assert_allclose(getattr(ours, method)(X), theirs, rtol=0, atol=1e-12)
    assert ours.score(X, y) == model.score(X, y)
    assert is_classifier(ours)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("model", [RidgeClassifier(), LinearSVC()])
def test_decision_values_of_other_linear_classifiers_are_kept(model, n_classes):
    X, y = labelled(n_classes)
    model = clone(model).fit(X, y)
    ours = LinearHead.from_estimator(model)
    decision = ours.decision_function(X)
    assert decision.shape == ((150,) if n_classes == 2 else (150, n_classes))
    np.testing.assert_allclose(decision, model.decision_function(X), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(ours.predict(X), model.predict(X))


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_outputs", [None, 1, 3])
@pytest.mark.parametrize("model", [Ridge, LinearRegression])
def test_regressions_are_taken_over_exactly(model, n_outputs, fit_intercept):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 4)), rng.normal(size=(50, n_outputs) if n_outputs else 50)
    model = model(fit_intercept=fit_intercept).fit(X, y)
    ours = LinearHead.from_estimator(FrozenEstimator(model))
    prediction = ours.predict(X)
    assert prediction.shape == ((50, 3) if n_outputs == 3 else (50,))
    theirs = model.predict(X).reshape(prediction.shape)
    np.testing.assert_allclose(prediction, theirs, rtol=0, atol=1e-12)
    weights = rng.uniform(size=50)
    for sample_weight in (None, weights):
        wanted = model.score(X, y, sample_weight)
        assert ours.score(X, y, sample_weight) == pytest.approx(wanted, abs=1e-12)
    assert is_regressor(ours)


@pytest.mark.parametrize(
    "estimator",
    [LogisticRegression(), FrozenEstimator(LogisticRegression()), Ridge(), StandardScaler()],
)
def test_an_unfitted_or_non_linear_model_is_refused_with_the_way_out(estimator):
    with pytest.raises(ValueError, match=r"has no coef_.*fit it first, or pass 'logistic'"):
        LinearHead.from_estimator(estimator)


# Logits, probabilities, labels.


@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_are_the_softmax_of_the_logits(n_classes):
    ours = head(n_classes)
    logits = X4 @ ours.coef_.T + ours.intercept_
    np.testing.assert_allclose(ours.outputs(X4), logits, rtol=0, atol=1e-14)
    wanted = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(ours.predict_proba(X4), wanted, rtol=0, atol=1e-14)
    np.testing.assert_allclose(ours.predict_log_proba(X4), np.log(wanted), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(ours.predict(X4), NAMES[logits.argmax(1)])
    decision = ours.decision_function(X4)
    if n_classes == 2:
        np.testing.assert_allclose(decision, logits[:, 1] - logits[:, 0], rtol=0, atol=1e-14)
        np.testing.assert_array_equal(ours.predict(X4), NAMES[(decision > 0).astype(int)])
    else:
        np.testing.assert_array_equal(decision, ours.outputs(X4))


def test_huge_logits_overflow_nowhere():
    ours = LinearHead([[0.0, 0.0], [1e4, 0.0]], [0.0, 0.0], ["no", "yes"])
    with np.errstate(all="raise", under="ignore"):
        probabilities = ours.predict_proba([[1.0, 0.0], [-1.0, 0.0]])
        logs = ours.predict_log_proba([[1.0, 0.0]])
    np.testing.assert_array_equal(probabilities, [[0, 1], [1, 0]])
    np.testing.assert_array_equal(logs, [[-1e4, 0]])


def test_rows_are_sorted_by_label_as_scikit_learn_expects():
    ours = LinearHead([[1, 2], [3, 4], [5, 6]], [7, 8, 9], ["z", "a", "m"])
    assert ours.classes_.tolist() == ["a", "m", "z"]
    assert ours.coef_.tolist() == [[3, 4], [5, 6], [1, 2]]
    assert ours.intercept_.tolist() == [8, 9, 7]
    ours = LinearHead(np.eye(3), np.zeros(3), ["z", "a", "m"])
    assert ours.predict(np.eye(3)).tolist() == ["z", "a", "m"]
    assert ours._targets(["m", "z", "a", "z"]).tolist() == [1, 2, 0, 2]
    assert ours.score(np.eye(3), ["z", "a", "z"]) == pytest.approx(2 / 3)
    assert not any(array.flags.writeable for array in (ours.coef_, ours.intercept_, ours.classes_))


# Two classes whose rows come in the wrong order, as in a checkpoint's id2label.

UNSORTED = [["not_equivalent", "equivalent"], [1, 0], [True, False], [3, -2]]


def separated(classes, seed=0):
    """Rows, labels, and a head that is right for most of them; its rows are as `classes`."""
    rng = np.random.default_rng(seed)
    which = np.arange(300) % 2
    X = rng.normal(size=(300, 4)) * [1, 1, 1, 9] + np.outer(2 * which - 1, [1, 1, 0, 0])
    y = np.array(classes)[which]
    return X, y, LinearHead([[-1, -1, 0, 0], [1, 1, 0, 0]], [0.0, 0.0], classes)


@pytest.mark.parametrize("classes", UNSORTED, ids=str)
class TestScikitLearnScorersOfAnUnsortedHead:
    def test_scores_are_those_of_the_same_model_in_scikit_learn(self, classes):
        X, y, ours = separated(classes)
        model = LogisticRegression().fit(X, y)
        positive = np.unique(classes)[1]
        sign = 1 if classes[1] == positive else -1
        model.coef_, model.intercept_ = sign * np.array([[2.0, 2.0, 0.0, 0.0]]), np.zeros(1)
        for name in ("roc_auc", "neg_log_loss"):
            scorer = get_scorer(name)
            assert scorer(ours, X, y) == pytest.approx(scorer(model, X, y), abs=1e-12)
        precision = make_scorer(
            average_precision_score, response_method="decision_function", pos_label=positive
        )
        assert precision(ours, X, y) == pytest.approx(precision(model, X, y), abs=1e-12)
        assert get_scorer("roc_auc")(ours, X, y) > 0.9


@pytest.mark.parametrize("container", [list, np.array, pd.Series, pd.Categorical])
@pytest.mark.parametrize("classes", [["ant", "bee"], [7, 3], [False, True], [0.5, 1.5]])
def test_targets_are_the_inverse_of_predict(classes, container):
    ours = head(2, classes=classes)
    predicted = ours.predict(X4)
    rows = ours._targets(container(predicted.tolist()))
    assert rows.dtype == np.int64
    np.testing.assert_array_equal(ours.classes_[rows], predicted)
    np.testing.assert_array_equal(rows, ours.outputs(X4).argmax(1))
    assert ours._targets([]).shape == (0,)


@pytest.mark.parametrize(
    ("classes", "y", "named"),
    [
        (["ant", "bee"], ["ant", "wasp", "fly", "wasp"], r"\['fly', 'wasp'\]"),
        ([0, 1], [0, 1, 2], r"\[2\]"),
        ([0, 1], ["0", "1"], r"\['0', '1'\]"),
        (["ant", "bee"], list("abcdefg"), r"\['a', 'b', 'c', 'd', 'e'\]"),
    ],
)
def test_unknown_labels_are_named_beside_the_known(classes, y, named):
    with pytest.raises(ValueError, match=f"unknown to the head: {named}; it knows") as caught:
        head(2, classes=classes)._targets(y)
    assert str(sorted(classes)) in str(caught.value)
    assert "name the classes: LinearHead(head.coef_, head.intercept_, classes)" in str(caught.value)


def test_score_is_weighted_accuracy():
    ours, rng = head(), np.random.default_rng(0)
    y, weights = NAMES[rng.integers(3, size=20)], rng.uniform(size=20)
    assert ours.score(X4, y) == accuracy_score(y, ours.predict(X4))
    wanted = accuracy_score(y, ours.predict(X4), sample_weight=weights)
    assert ours.score(X4, y, weights) == pytest.approx(wanted, abs=1e-15)
    values = rng.normal(size=20)
    assert regressor().score(X4, values) == r2_score(values, regressor().predict(X4))


def test_float32_embeddings_are_computed_in_float64():
    ours = head()
    X = X4.astype(np.float32)
    np.testing.assert_array_equal(ours.outputs(X), ours.outputs(X.astype(np.float64)))
    for other in (torch.tensor(X4), pd.DataFrame(X4), X4.tolist()):
        np.testing.assert_array_equal(ours.predict_proba(other), ours.predict_proba(X4))


# A regressor has nothing of a classifier.


def test_a_regressor_has_no_probabilities():
    ours = regressor()
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        assert hasattr(head(), method)
        assert not hasattr(ours, method)
        with pytest.raises(AttributeError, match=method):
            getattr(ours, method)
    assert ours.classes_ is None


def test_tags_follow_from_the_classes():
    assert is_classifier(head())
    assert not is_regressor(head())
    assert is_regressor(regressor())
    assert not is_classifier(regressor())
    assert is_classifier(make_pipeline(StandardScaler(), head()))
    assert is_regressor(make_pipeline(StandardScaler(), regressor()))


# Frozen.


class Holder(TransformerMixin, BaseEstimator):
    def __init__(self, head=None):
        self.head = head


def test_clone_and_fit_give_the_same_object():
    ours = head()
    assert clone(ours) is ours
    assert clone(ours, safe=False) is ours
    assert clone([ours])[0] is ours
    assert clone(Holder(ours)).head is ours
    assert ours.fit(X4, ["wasp"] * 20) is ours
    assert ours.fit() is ours
    assert ours.get_params() == ours.get_params(deep=False) == {}
    assert Holder(ours).get_params(deep=True) == {"head": ours}
    with pytest.raises(ValueError, match=r"a LinearHead is frozen, so \['coef'\] cannot be set"):
        ours.set_params(coef=np.zeros((3, 4)))
    check_is_fitted(ours)


@pytest.mark.parametrize("array", ["coef_", "intercept_", "classes_"])
def test_arrays_are_copies_and_read_only(array):
    given = {
        "coef_": np.ones((2, 3)),
        "intercept_": np.ones(2),
        "classes_": np.array([4, 5]),
    }
    ours = LinearHead(*given.values())
    given[array][0] = 9
    held = getattr(ours, array)
    assert not (held == 9).any()
    with pytest.raises(ValueError, match="read-only"):
        held[0] = 9
    given["coef_"][0] = 1  # the caller's own stay writable


def through_joblib(ours, folder):
    joblib.dump(ours, folder / "head.joblib")
    return joblib.load(folder / "head.joblib")


COPIES = {
    "pickle": lambda ours, folder: pickle.loads(pickle.dumps(ours)),
    "deepcopy": lambda ours, folder: copy.deepcopy(ours),
    "joblib": through_joblib,
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("make", [head, regressor])
def test_copies_predict_the_same(make, way, tmp_path):
    ours = make()
    again = COPIES[way](ours, tmp_path)
    np.testing.assert_array_equal(again.outputs(X4), ours.outputs(X4))
    np.testing.assert_array_equal(again.predict(X4), ours.predict(X4))
    assert repr(again) == repr(ours)
    assert clone(again) is again


@pytest.mark.parametrize("way", COPIES)
def test_copies_are_as_frozen_as_the_original(way, tmp_path):
    again = COPIES[way](head(), tmp_path)
    assert not again.coef_.flags.writeable
    assert not again.intercept_.flags.writeable


def test_repr():
    assert repr(head(2)) == "LinearHead(n_features=4, classes=['ant', 'bee'])"
    assert repr(regressor(2)) == "LinearHead(n_features=4, n_outputs=2)"
    many = LinearHead(np.zeros((2000, 2)), np.zeros(2000), np.arange(2000))
    assert len(repr(many)) <= 700


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((2, 3)), np.ones(3)), r"intercept has shape \(3,\), coef has 2 rows"),
        ((np.ones((2, 3)), np.ones((2, 1))), r"intercept has shape \(2, 1\)"),
        ((np.ones(3), np.ones(1)), "Expected 2D array, got 1D array"),
        ((np.ones((2, 3, 1)), np.ones(2)), "dim 3"),
        ((np.full((2, 3), np.nan), np.ones(2)), "coef contains NaN"),
        ((np.full((2, 3), np.inf), np.ones(2)), "coef contains infinity"),
        ((np.ones((2, 3)), np.array([0, np.nan])), "intercept contains NaN"),
        ((np.ones((2, 3)), np.ones(2), ["a"]), "coef has 2 rows: give as many different labels"),
        ((np.ones((2, 3)), np.ones(2), ["a", "b", "c"]), "coef has 2 rows"),
        ((np.ones((2, 3)), np.ones(2), ["a", "a"]), "different labels"),
        ((np.ones((3, 3)), np.ones(3), [1, 2, 1]), "different labels"),
        ((np.ones((1, 3)), np.ones(1), ["a"]), "two or more"),
        ((np.ones((2, 3)), np.ones(2), [["a", "b"]]), "coef has 2 rows"),
        ((np.ones((2, 3)), np.ones(2), "ab"), "coef has 2 rows"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LinearHead(*arguments)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function", "outputs"])
@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.ones((5, 3)), "X has 3 features, but the head expects 4"),
        (np.ones((5, 5)), "X has 5 features, but the head expects 4"),
        (np.ones(4), "Expected 2D array, got 1D array"),
        (np.full((5, 4), np.nan), "contains NaN"),
        (np.full((5, 4), np.inf), "contains infinity"),
        (["a text"], "Expected 2D array|could not convert"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(method, X, message):
    with pytest.raises(ValueError, match=message):
        getattr(head(), method)(X)


# fit_head.


POWERS = np.arange(-5, 5, 0.5)


def in_one_scale(X):
    """Rows divided by the root of the mean variance of their columns."""
    return X / np.sqrt(X.var(axis=0).mean())


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_logistic_probe_is_a_logistic_regression_in_one_scale(n_classes):
    X, y = labelled(n_classes)
    X = X * np.logspace(-1, 1.5, 6) + 10
    probe, Z = fit_head("logistic", X, y), in_one_scale(X)
    models = [LogisticRegression(C=10**p / 6, tol=1e-6, max_iter=9999) for p in POWERS]
    distances = [abs(m.fit(Z, y).predict_proba(Z) - probe.predict_proba(X)).max() for m in models]
    assert min(distances) < 1e-3
    assert probe.classes_.tolist() == sorted(set(y))
    assert row_space(probe.coef_)[0].shape[1] == n_classes - 1


def overfitted(n_classes=2, seed=0):
    """As many rows as dimensions, one of which tells the classes apart; 1,000 more to judge on."""
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=1060)
    X = rng.normal(size=(1060, 60))
    X[:, 0] += 2 * y
    return X[:60], y[:60], X[60:], y[60:]


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_penalty_of_a_probe_is_as_good_as_the_best_one_on_new_rows(n_classes):
    chosen, fixed = [], []
    for seed in range(5):
        X, y, new, labels = overfitted(n_classes, seed)
        models = [LogisticRegression(C=10**p / 60).fit(X, y) for p in POWERS[::2]]
        fixed.append([log_loss(labels, model.predict_proba(new)) for model in models])
        chosen.append(log_loss(labels, fit_head("logistic", X, y).predict_proba(new)))
    assert np.mean(chosen) < np.mean(fixed, axis=0).min() + 0.05
    assert np.mean(chosen) < np.mean(fixed, axis=0)[POWERS[::2] > 1.5].min() - 0.1  # C=1


def test_the_penalty_of_a_ridge_probe_is_as_good_as_the_best_one_on_new_rows():
    chosen, fixed = [], []
    for seed in range(5):
        X, _, new, _ = overfitted(seed=seed)
        noise = np.random.default_rng(seed).normal(size=1060)
        values, new_values = X[:, 0] + noise[:60], new[:, 0] + noise[60:]
        models = [Ridge(60 * 10**-p).fit(X, values) for p in POWERS]
        fixed.append([model.score(new, new_values) for model in models])
        chosen.append(fit_head("ridge", X, values).score(new, new_values))
    assert np.mean(chosen) > np.mean(fixed, axis=0).max() - 0.05


def test_folds_of_a_probe_keep_groups_and_copies_whole():
    """Labels are noise, and only copies in another fold make them seem to be learnt."""
    rng = np.random.default_rng(0)
    X, y, groups = rng.normal(size=(40, 60)), rng.permutation(40) % 2, np.arange(40).repeat(5)
    near, labels = X.repeat(5, axis=0), y.repeat(5)
    near = near + 1e-3 * rng.normal(size=near.shape)
    for kind in ("logistic", "ridge"):
        size = np.linalg.norm(fit_head(kind, near, labels).coef_)
        assert np.linalg.norm(fit_head(kind, near, labels, groups=groups).coef_) < 0.3 * size
        copies = fit_head(kind, X.repeat(5, axis=0), labels)
        assert np.linalg.norm(copies.coef_) < 0.3 * size


def test_folds_of_a_probe_spread_the_classes():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(103, 3)), np.repeat([0, 1, 2], [60, 30, 13])
    X[50:56] = X[:6]
    groups = rng.integers(60, size=103)
    groups[[0, 1]] = 0, 1
    for given in (None, groups):
        folds = fold_numbers(X, y, given, 5)
        np.testing.assert_array_equal(folds[50:56], folds[:6])
        counts = np.array([np.bincount(y[folds == fold], minlength=3) for fold in range(5)])
        if given is None:
            assert (counts.max(axis=0) - counts.min(axis=0) <= 3).all()
        else:
            assert all(len(set(folds[groups == group])) == 1 for group in set(groups))


def test_a_class_with_fewer_rows_than_folds_has_the_stated_penalty():
    X, y, _, _ = overfitted()
    y[:] = 0
    y[:4] = 1
    Z = in_one_scale(X)
    stated = LogisticRegression(C=10**0.5 / 60, tol=1e-8, max_iter=9999).fit(Z, y)
    found = fit_head("logistic", X, y).predict_proba(X)
    np.testing.assert_allclose(found, stated.predict_proba(Z), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["logistic", LogisticRegression()])
def test_a_single_class_is_refused(kind):
    X, y = labelled(2)
    with pytest.raises(ValueError, match=r"y has only one class, 1, while head=.*head=None"):
        fit_head(kind, X, np.ones_like(y))
    kept = (y == y[0]).astype(float)
    message = f"y has only one class, {y[0]} among the rows of positive weight, while head="
    with pytest.raises(ValueError, match=message):
        fit_head(kind, X, y, kept)


@pytest.mark.parametrize("n_outputs", [None, 2])
def test_a_ridge_probe_is_a_ridge_in_one_scale_and_weights_are_repeated_rows(n_outputs):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 4)) * 7 + 3, rng.normal(size=(50, n_outputs) if n_outputs else 50)
    probe, Z = fit_head("ridge", X, y), in_one_scale(X)
    distances = [
        abs(Ridge(4 * 10**-p).fit(Z, y).predict(Z) - probe.predict(X)).max() for p in POWERS
    ]
    assert min(distances) < 1e-10
    assert is_regressor(probe)
    weights = rng.integers(0, 4, size=50)
    weighted = fit_head("ridge", X, y, weights)
    repeated = fit_head("ridge", np.repeat(X, weights, 0), np.repeat(y, weights, 0))
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["logistic", "ridge"])
def test_probes_do_not_depend_on_scale_or_shift(kind):
    X, y = labelled(3)
    if kind == "ridge":
        y = X @ np.arange(6.0) + np.random.default_rng(0).normal(size=len(X))
    probe, moved = fit_head(kind, X, y), fit_head(kind, X * 1e3 + 5e3, y)
    there = moved.predict(X * 1e3 + 5e3)
    if kind == "ridge":
        np.testing.assert_allclose(there, probe.predict(X), rtol=0, atol=1e-8)
    else:
        np.testing.assert_array_equal(there, probe.predict(X))
        np.testing.assert_allclose(
            moved.predict_proba(X * 1e3 + 5e3), probe.predict_proba(X), rtol=0, atol=1e-6
        )


ROWS = np.random.default_rng(0).normal(size=(150, 5)) + 0.5
VALUES = ROWS @ np.random.default_rng(1).normal(size=(5, 4))
Y2, Y3, Y4 = NAMES[(VALUES[:, 0] > 0).astype(int)], VALUES[:, :3].argmax(1), NAMES[VALUES.argmax(1)]
NOISY = VALUES + np.random.default_rng(2).normal(size=VALUES.shape)
LABELS = (NOISY[:, :3] > 0).astype(int)
POSITIVE = np.exp(NOISY[:, 0] / 4)
LOGISTIC = LogisticRegression()
FOLDS = {"estimator": LOGISTIC, "param_grid": {"C": [0.1, 1.0]}, "cv": 3}

TAKEN = [
    (LogisticRegression(C=1e-6), Y3),
    (LogisticRegression(C=0.001, l1_ratio=1, solver="saga"), Y2),
    (SVC(kernel="linear"), Y2),
    (Perceptron(), Y4),
    (SGDClassifier("log_loss", random_state=0), Y3),
    (LinearDiscriminantAnalysis(), Y2),
    (LinearDiscriminantAnalysis(), Y4),
    (RidgeClassifier(), LABELS),
    (RidgeClassifierCV(), LABELS.astype(float)),
    (Ridge(), LABELS),
    (Lasso(100.0), NOISY[:, 0]),
    (MultiTaskElasticNet(), NOISY),
    (HuberRegressor(), NOISY[:, 0]),
    (RANSACRegressor(random_state=0), NOISY[:, 0]),
    (SVR(kernel="linear"), NOISY[:, 0]),
    (TweedieRegressor(power=0), NOISY[:, 0]),
    (PLSRegression(2), NOISY),
    (CCA(2), NOISY),
    (TransformedTargetRegressor(Ridge()), NOISY),
    (OneVsRestClassifier(LOGISTIC), Y2),
    (OneVsRestClassifier(LOGISTIC), Y4),
    (OneVsRestClassifier(LOGISTIC), LABELS),
    (OneVsRestClassifier(LOGISTIC), csr_matrix(LABELS)),
    (OneVsRestClassifier(LOGISTIC), LABELS * [1, 0, 1]),
    (OneVsRestClassifier(LOGISTIC), LABELS | [0, 1, 0]),
    (OneVsRestClassifier(LinearSVC()), LABELS),
    (OneVsRestClassifier(SVC(kernel="linear")), Y4),
    (OneVsRestClassifier(Ridge()), Y4),
    (OneVsRestClassifier(GridSearchCV(**FOLDS)), LABELS),
    (MultiOutputClassifier(LOGISTIC), LABELS),
    (MultiOutputClassifier(LOGISTIC), LABELS[:, :1]),
    (MultiOutputClassifier(LinearSVC()), LABELS > 0),
    (MultiOutputRegressor(LinearSVR()), NOISY),
    (GridSearchCV(**FOLDS), Y3),
    (FixedThresholdClassifier(LOGISTIC), Y2),
    (SelfTrainingClassifier(LOGISTIC), Y3),
]

REFUSED = [
    (FixedThresholdClassifier(LOGISTIC, threshold=0.51), Y2),
    (FixedThresholdClassifier(LOGISTIC, threshold=0.49), Y2),
    (TunedThresholdClassifierCV(LOGISTIC, cv=3), np.where(NOISY[:, 0] > 2, "b", "a")),
    (PoissonRegressor(), POSITIVE),
    (GammaRegressor(), POSITIVE),
    (TransformedTargetRegressor(Ridge(), transformer=StandardScaler()), 3 * NOISY[:, 0]),
    (TransformedTargetRegressor(Ridge(), func=np.log, inverse_func=np.exp), POSITIVE),
    (SVC(kernel="linear"), Y3),
    (SVC(kernel="linear"), Y4),
    (SVC(), Y2),
    (OneVsOneClassifier(LOGISTIC), Y3),
    (OneVsOneClassifier(LOGISTIC), Y4),
    (OutputCodeClassifier(LOGISTIC, code_size=1, random_state=0), Y4),
    (ClassifierChain(LOGISTIC), LABELS),
    (RegressorChain(Ridge()), NOISY),
    (MultiOutputClassifier(LOGISTIC), NAMES[LABELS]),
    (MultiOutputClassifier(LOGISTIC), LABELS + 1),
    (MultiOutputClassifier(LOGISTIC), np.column_stack([Y3, LABELS])),
    (MultiOutputClassifier(FixedThresholdClassifier(LOGISTIC, threshold=0.6)), LABELS),
    (OneVsRestClassifier(Ridge()), LABELS),
    (SelectFromModel(LOGISTIC), Y2),
    (OneVsRestClassifier(make_pipeline(StandardScaler(), LOGISTIC)), LABELS),
    (GridSearchCV(make_pipeline(StandardScaler(), LOGISTIC), {}, cv=3), Y2),
    (CalibratedClassifierCV(LOGISTIC, cv=3), Y2),
    (VotingRegressor([("a", Ridge()), ("b", Ridge(9))]), NOISY[:, 0]),
    (BaggingClassifier(LOGISTIC, 3, random_state=0), Y2),
    (RFE(LOGISTIC, n_features_to_select=3), Y2),
    (OneClassSVM(kernel="linear"), Y3),
    (RandomForestClassifier(2, random_state=0), Y2),
]


def shown(value):
    return " ".join(repr(value).split())[:60] if hasattr(value, "fit") else None


def dense(values):
    return values.toarray() if issparse(values) else np.asarray(values)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:(Label|y contains no unlabeled):UserWarning")
@pytest.mark.parametrize(("estimator", "y"), TAKEN, ids=shown)
def test_linear_models_and_their_composites_predict_the_same(estimator, y):
    model = clone(estimator).fit(ROWS, y)
    ours = LinearHead.from_estimator(FrozenEstimator(model))
    rows = np.random.default_rng(3).normal(size=(500, 5)) * 3
    found, expected = ours.predict(rows), dense(model.predict(rows))
    if ours.classes_ is None:
        np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-6, atol=1e-9)
    else:
        np.testing.assert_array_equal(found, expected)
        assert is_classifier(ours)
    several = is_classifier(model) and np.ndim(dense(y)) == 2
    assert ours.multi_label_ == several
    assert is_regressor(ours) == is_regressor(model)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("estimator", "y"), REFUSED, ids=shown)
def test_models_that_predict_otherwise_are_refused(estimator, y):
    with pytest.raises(ValueError, match=r"has no coef_ with one row|does not predict as a head"):
        LinearHead.from_estimator(clone(estimator).fit(ROWS, y))


def test_a_model_fitted_to_named_columns_is_read_without_a_warning():
    table = pd.DataFrame(ROWS, columns=[f"x{j}" for j in range(ROWS.shape[1])])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head = LinearHead.from_estimator(clone(LOGISTIC).fit(table, Y3))
    np.testing.assert_array_equal(head.predict(ROWS), clone(LOGISTIC).fit(ROWS, Y3).predict(ROWS))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shift", [-50.0, 0.0, 50.0])
def test_thresholds_are_noticed_at_every_scale_and_shift(scale, shift):
    rows = (ROWS + shift) * scale
    model = LogisticRegression(C=1 / scale**2, max_iter=1000).fit(rows, Y2)
    kept = LinearHead.from_estimator(FixedThresholdClassifier(FrozenEstimator(model)).fit(rows, Y2))
    np.testing.assert_array_equal(kept.predict(rows), model.predict(rows))
    moved = FixedThresholdClassifier(FrozenEstimator(model), threshold=0.52).fit(rows, Y2)
    with pytest.raises(ValueError, match="another threshold"):
        LinearHead.from_estimator(moved)


def test_sparse_coefficients_are_read():
    sparse = LogisticRegression().fit(ROWS, Y3).sparsify()
    found = LinearHead.from_estimator(sparse).predict(ROWS)
    np.testing.assert_array_equal(found, sparse.predict(ROWS))


def test_bfloat16_tensors_are_read_as_float32():
    X = torch.randn(90, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    y = (X[:, 0] > 0).int()
    rows, labels = X.float().numpy(), y.numpy()
    ours = head(2, classes=[0, 1])
    np.testing.assert_array_equal(ours.predict_proba(X), ours.predict_proba(rows))
    weight = torch.nn.Parameter(X[:2])
    given = LinearHead(weight, X[0, :2], classes=[0, 1])
    np.testing.assert_array_equal(given.coef_, rows[:2])
    assert given.score(X, y) == given.score(rows, labels)


@pytest.mark.parametrize("classes", [["a", 1], [None, 1]])
def test_labels_that_cannot_be_sorted_are_named(classes):
    with pytest.raises(ValueError, match=r"classes=.* cannot be sorted .*labels of one kind"):
        LinearHead(np.eye(2), [0, 0], np.array(classes, dtype=object))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of LogisticRegressionCV's defaults
@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(C=0.01),
        LogisticRegressionCV(Cs=[0.01, 1.0], cv=3, max_iter=1000),
        RidgeClassifier(alpha=10.0),
        RidgeClassifierCV(alphas=[1.0, 10.0]),
        Ridge(alpha=10.0),
        RidgeCV(alphas=[1.0, 10.0]),
    ],
    ids=repr,
)
def test_an_unfitted_estimator_sets_the_regularisation_of_a_head(estimator):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4))
    y = (X[:, 0] + rng.normal(size=90) > 0).astype(int)
    y = y if is_classifier(estimator) else X[:, 0] + rng.normal(size=90)
    adapter = LogitPreservingWhitening(estimator).fit(X, y)
    expected = clone(estimator).fit(X, y)
    np.testing.assert_allclose(adapter.predict(X), expected.predict(X))
    assert not hasattr(estimator, "coef_")
    assert isinstance(adapter.head_, LinearHead)


@pytest.mark.parametrize(
    ("names", "y"),
    [(["2", "0", "1"], [0, 1, 2]), (["1", "2", "3"], [1, 2]), (["True", "False"], [True])],
)
def test_numbers_that_spell_names_of_other_ids_are_refused(names, y):
    head = LinearHead(np.eye(len(names)), np.zeros(len(names)), np.arange(len(names)))
    head._other_labels = np.array(names)
    for given in (y, pd.Series(y, dtype=object)):
        with pytest.raises(ValueError, match=r"may be the ids .* or, as numbers, the names"):
            head.score(np.eye(len(names))[: len(y)], given)
    assert head._for_labels(list(map(str, y))).classes_.tolist() == sorted(names)
    assert head._for_labels(y, strict=False) is head
