"""LinearHead predicts like the model it was taken from and cannot be changed; probes are fitted."""

import copy
import pickle

import numpy as np
import pytest
from scipy.sparse import csr_matrix, issparse
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.compose import TransformedTargetRegressor
from sklearn.cross_decomposition import PLSRegression
from sklearn.datasets import make_classification
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifierCV,
    SGDClassifier,
)
from sklearn.metrics import accuracy_score, log_loss, r2_score
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC, LinearSVR
from sklearn.utils.validation import check_is_fitted

from isoadapt import LinearHead
from isoadapt.adapters._heads import fit_head
from isoadapt.adapters._linalg import row_space
from isoadapt.adapters._ridge_path import ridge_path
from isoadapt.adapters._rows import fold_numbers
from tests.refusals import refusals

NAMES = np.array(["ant", "bee", "cat", "dog"])
X4 = np.random.default_rng(1).normal(size=(20, 4))


def labelled(n_classes, seed=0):
    X, y = make_classification(
        150, 6, n_informative=5, n_redundant=0, n_classes=n_classes, random_state=seed
    )
    return X, NAMES[y]


def head(n_classes=3, classes=None):
    rng = np.random.default_rng(0)
    coef, intercept = rng.normal(size=(n_classes, 4)), rng.normal(size=n_classes)
    return LinearHead(coef, intercept, NAMES[:n_classes] if classes is None else classes)


def regressor():
    rng = np.random.default_rng(0)
    return LinearHead(rng.normal(size=(1, 4)), rng.normal(size=1))


# The same predictions as the model it came from.


@pytest.mark.parametrize(("n_classes", "fit_intercept"), [(2, True), (2, False), (3, True)])
def test_logistic_regression_is_taken_over_exactly(n_classes, fit_intercept):
    X, y = labelled(n_classes)
    model = LogisticRegression(fit_intercept=fit_intercept).fit(X, y)
    ours = LinearHead.from_estimator(FrozenEstimator(model))
    assert ours.coef_.shape == (n_classes, 6)
    np.testing.assert_array_equal(ours.predict(X), model.predict(X))
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        theirs = getattr(model, method)(X)
        np.testing.assert_allclose(getattr(ours, method)(X), theirs, rtol=0, atol=1e-12)


ROWS = np.random.default_rng(0).normal(size=(150, 5)) + 0.5
VALUES = ROWS @ np.random.default_rng(1).normal(size=(5, 4))
Y2, Y3, Y4 = NAMES[(VALUES[:, 0] > 0).astype(int)], VALUES[:, :3].argmax(1), NAMES[VALUES.argmax(1)]
NOISY = VALUES + np.random.default_rng(2).normal(size=VALUES.shape)
LABELS = (NOISY[:, :3] > 0).astype(int)
POSITIVE = np.exp(NOISY[:, 0] / 4)
LOGISTIC = LogisticRegression()
FOLDS = {"estimator": LOGISTIC, "param_grid": {"C": [0.1, 1.0]}, "cv": 3}

TAKEN = [
    (SVC(kernel="linear"), Y2),
    (SGDClassifier("log_loss", random_state=0), Y3),
    (LinearDiscriminantAnalysis(), Y4),
    (RidgeClassifierCV(), LABELS.astype(float)),
    (LinearRegression(fit_intercept=False), NOISY[:, :1]),
    (PLSRegression(2), NOISY),
    (OneVsRestClassifier(LOGISTIC), Y4),
    (OneVsRestClassifier(LOGISTIC), csr_matrix(LABELS)),
    (OneVsRestClassifier(LOGISTIC), LABELS * [1, 0, 1]),
    (OneVsRestClassifier(LOGISTIC), LABELS | [0, 1, 0]),
    (MultiOutputClassifier(LinearSVC()), LABELS > 0),
    (MultiOutputRegressor(LinearSVR()), NOISY),
    (GridSearchCV(**FOLDS), Y3),
    (FixedThresholdClassifier(LOGISTIC), Y2),
    (GridSearchCV(make_pipeline(StandardScaler(), LOGISTIC), {}, cv=3), Y3),
]

REFUSED = [
    (FixedThresholdClassifier(LOGISTIC, threshold=0.501), Y2),
    (PoissonRegressor(), POSITIVE),
    (TransformedTargetRegressor(Ridge(), func=np.log, inverse_func=np.exp), POSITIVE),
    (SVC(), Y2),
    (OneVsOneClassifier(LOGISTIC), Y3),
    (ClassifierChain(LOGISTIC), LABELS),
    (MultiOutputClassifier(LOGISTIC), np.column_stack([Y3, LABELS])),
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
    ours = LinearHead.from_estimator(model)
    rows = np.random.default_rng(3).normal(size=(500, 5)) * 3
    found, expected = ours.predict(rows), dense(model.predict(rows))
    if ours.classes_ is None:
        np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-6, atol=1e-9)
    else:
        np.testing.assert_array_equal(found, expected)
    assert ours.multi_label_ == (is_classifier(model) and np.ndim(dense(y)) == 2)
    assert is_regressor(ours) == is_regressor(model)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("estimator", "y"), REFUSED, ids=shown)
def test_models_that_predict_otherwise_are_refused(estimator, y):
    with pytest.raises(ValueError, match=r"not a fitted linear model|does not predict as"):
        LinearHead.from_estimator(clone(estimator).fit(ROWS, y))


@pytest.mark.parametrize(("scale", "shift"), [(1e-6, 50.0), (1e6, -50.0), (1.0, 0.0)])
def test_thresholds_are_noticed_at_every_scale_and_shift(scale, shift):
    rows = (ROWS + shift) * scale
    model = LogisticRegression(C=1 / scale**2, max_iter=1000).fit(rows, Y2)
    kept = LinearHead.from_estimator(FixedThresholdClassifier(FrozenEstimator(model)).fit(rows, Y2))
    np.testing.assert_array_equal(kept.predict(rows), model.predict(rows))
    moved = FixedThresholdClassifier(FrozenEstimator(model), threshold=0.52).fit(rows, Y2)
    with pytest.raises(ValueError, match="another threshold"):
        LinearHead.from_estimator(moved)


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
    decision = logits if n_classes == 3 else logits[:, 1] - logits[:, 0]
    np.testing.assert_allclose(ours.decision_function(X4), decision, rtol=0, atol=1e-14)
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(ours.predict_log_proba(1e4 * X4)).all()


def test_rows_are_sorted_by_label_as_scikit_learn_expects():
    ours = LinearHead([[1, 2], [3, 4], [5, 6]], [7, 8, 9], ["z", "a", "m"])
    assert ours.classes_.tolist() == ["a", "m", "z"]
    assert ours.coef_.tolist() == [[3, 4], [5, 6], [1, 2]]
    assert ours.intercept_.tolist() == [8, 9, 7]
    ours = LinearHead(np.eye(3), np.zeros(3), ["z", "a", "m"])
    assert ours.predict(np.eye(3)).tolist() == ["z", "a", "m"]
    assert ours._targets(["m", "z", "a", "z"]).tolist() == [1, 2, 0, 2]
    assert ours.score(np.eye(3), ["z", "a", "z"]) == pytest.approx(2 / 3)


def test_score_is_weighted_accuracy_or_r2():
    ours, rng = head(), np.random.default_rng(0)
    y, weights, values = NAMES[rng.integers(3, size=20)], rng.uniform(size=20), rng.normal(size=20)
    wanted = accuracy_score(y, ours.predict(X4), sample_weight=weights)
    assert ours.score(X4, y, weights) == pytest.approx(wanted, abs=1e-15)
    wanted = r2_score(values, regressor().predict(X4), sample_weight=weights)
    assert regressor().score(X4, values, weights) == pytest.approx(wanted, abs=1e-12)


# Frozen.


def test_clone_and_fit_give_the_same_object_and_copies_are_as_frozen():
    for ours in (head(), regressor()):
        assert clone(ours) is clone(ours, safe=False) is ours.fit(X4, ["wasp"] * 20) is ours
        for again in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
            np.testing.assert_array_equal(again.predict(X4), ours.predict(X4))
            assert clone(again) is again
            for array in (again.coef_, again.intercept_):
                assert not array.flags.writeable
    given = np.ones((2, 3))
    frozen = LinearHead(given, np.ones(2))
    given[0] = 9  # the caller's own stays writable
    assert not (frozen.coef_ == 9).any()
    assert ours.get_params() == {}
    with pytest.raises(ValueError, match="coef"):
        ours.set_params(coef=np.zeros((3, 4)))
    assert not hasattr(ours, "predict_proba")
    assert is_regressor(make_pipeline(StandardScaler(), ours))
    check_is_fitted(ours)


# What is refused.


test_what_does_not_fit_is_refused = refusals(
    (lambda: head(2, [0, 1]).score(X4[:2], ["0", "1"]), r"'0', '1'.*\[0, 1\]"),
    (lambda: head(2, ["no", "yes"]).score(X4[:2], ["No", "YES"]), r"'No', 'YES'.*'no', 'yes'"),
    (lambda: LinearHead(np.ones((2, 3)), np.ones(2), ["a", "b", "c"]), "classes"),
    (lambda: LinearHead(np.eye(2), [0, 0], np.array(["a", 1], dtype=object)), "classes"),
    (lambda: LinearHead.from_estimator(LogisticRegression()), "fit it first"),
    (lambda: head().predict(np.ones((5, 3))), "4"),
    (lambda: head()._targets(["ant", "wasp", "fly"]), r"fly.*ant.*relabel"),
)


# fit_head.


POWERS = np.arange(-5, 5, 0.5)


def in_one_scale(X):
    """Rows divided by the root of the mean variance of their columns."""
    return X / np.sqrt(X.var(axis=0).mean())


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_logistic_probe_is_a_logistic_regression_in_one_scale(n_classes):
    X, y = labelled(n_classes)
    X = X * np.logspace(-0.5, 0.5, 6) + 10
    probe, Z = fit_head("logistic", X, y), in_one_scale(X)
    models = [LogisticRegression(C=10**p / 6, tol=1e-6, max_iter=9999) for p in POWERS[8:16]]
    distances = [abs(m.fit(Z, y).predict_proba(Z) - probe.predict_proba(X)).max() for m in models]
    assert min(distances) < 1e-3
    assert probe.classes_.tolist() == sorted(set(y))
    assert row_space(probe.coef_)[0].shape[1] == n_classes - 1


def overfitted(seed=0):
    """As many rows as dimensions, one of which tells the classes apart; 1,000 more to judge on."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=1060)
    X = rng.normal(size=(1060, 60))
    X[:, 0] += 2 * y
    return X[:60], y[:60], X[60:], y[60:]


def test_the_penalty_of_a_probe_is_as_good_as_the_best_one_on_new_rows():
    chosen, fixed = [], []
    for seed in range(3):
        X, y, new, labels = overfitted(seed)
        models = [LogisticRegression(C=10**p / 60).fit(X, y) for p in POWERS[::2]]
        fixed.append([log_loss(labels, model.predict_proba(new)) for model in models])
        chosen.append(log_loss(labels, fit_head("logistic", X, y).predict_proba(new)))
    assert np.mean(chosen) < np.mean(fixed, axis=0).min() + 0.05
    assert np.mean(chosen) < np.mean(fixed, axis=0)[POWERS[::2] > 1.5].min() - 0.1  # C=1


def test_the_penalty_of_a_ridge_probe_is_as_good_as_the_best_one_on_new_rows():
    chosen, fixed = [], []
    for seed in range(5):
        X, _, new, _ = overfitted(seed)
        noise = np.random.default_rng(seed).normal(size=1060)
        values, new_values = X[:, 0] + noise[:60], new[:, 0] + noise[60:]
        models = [Ridge(60 * 10**-p).fit(X, values) for p in POWERS]
        fixed.append([model.score(new, new_values) for model in models])
        chosen.append(fit_head("ridge", X, values).score(new, new_values))
    assert np.mean(chosen) > np.mean(fixed, axis=0).max() - 0.05


@pytest.mark.parametrize("kind", ["logistic", "ridge"])
def test_folds_of_a_probe_keep_groups_and_copies_whole(kind):
    """Labels are noise, and only copies in another fold make them seem to be learnt."""
    rng = np.random.default_rng(0)
    X, y, groups = rng.normal(size=(40, 60)), rng.permutation(40) % 2, np.arange(40).repeat(5)
    near, labels = X.repeat(5, axis=0), y.repeat(5)
    near = near + 1e-3 * rng.normal(size=near.shape)
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
    folds, grouped = fold_numbers(X, y, None, 5), fold_numbers(X, y, groups, 5)
    counts = np.array([np.bincount(y[folds == fold], minlength=3) for fold in range(5)])
    assert (counts.max(axis=0) - counts.min(axis=0) <= 3).all()
    for found in (folds, grouped):
        np.testing.assert_array_equal(found[50:56], found[:6])
    assert all(len(set(grouped[groups == group])) == 1 for group in set(groups))


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
    with pytest.raises(ValueError, match=r"only one class, .*head=None"):
        fit_head(kind, X, y, (y == y[0]).astype(float))


def test_a_ridge_probe_is_a_ridge_in_one_scale_and_weights_are_repeated_rows():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 4)) * 7 + 3, rng.normal(size=(50, 2))
    probe, Z = fit_head("ridge", X, y), in_one_scale(X)
    far = [abs(Ridge(4 * 10**-p).fit(Z, y).predict(Z) - probe.predict(X)).max() for p in POWERS]
    assert min(far) < 1e-10
    weights = rng.integers(0, 4, size=50)
    weighted = fit_head("ridge", X, y, weights)
    repeated = fit_head("ridge", np.repeat(X, weights, 0), np.repeat(y, weights, 0))
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=0, atol=1e-10)


def test_a_path_of_ridges_solves_the_normal_equations():
    gram, cross, ridges = ROWS.T @ ROWS, ROWS.T @ VALUES, np.logspace(-3, 2, 20)
    for ridge, coef in zip(ridges, ridge_path(gram, cross, ridges), strict=True):
        expected = np.linalg.solve(gram + ridge * np.eye(5), cross)
        np.testing.assert_allclose(coef, expected, rtol=1e-9)


def test_coefficients_are_read_that_vanish_beside_the_intercept():
    model = Ridge().fit(np.eye(3), [1.0, 2.0, 4.0])
    model.coef_ *= 1e-25
    head = LinearHead.from_estimator(model)
    np.testing.assert_allclose(head.coef_[0], model.coef_, rtol=1e-12)
    assert head.intercept_[0] == model.intercept_
