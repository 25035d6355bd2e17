"""Multi-label heads: one sigmoid for each label, from checkpoints and from labels."""

import json
import re
import warnings

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from scipy.sparse import csr_array
from scipy.special import expit
from sklearn.base import clone, is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags
from torch.nn.functional import binary_cross_entropy_with_logits

from isoadapt import (
    AdaptedEncoder,
    CosRegAdapter,
    IsoBN,
    IsotropyLayer,
    IStarAdapter,
    LinearHead,
    LogitPreservingWhitening,
    PenaltyAdapter,
    TransformerEncoder,
    Whitening,
    load_checkpoint,
)
from isoadapt.adapters._heads import fit_head
from isoadapt.adapters._rows import split_rows, strata
from isoadapt.adapters._training import _epoch_choice
from isoadapt.adapters._training._epoch_choice import Accuracy
from isoadapt.adapters._training._loop import task_loss
from isoadapt.adapters._training._problem import automatic_ridge
from isoadapt.interop import (
    load_adapter,
    merge_into_checkpoint,
    save_adapter,
    to_sentence_transformer,
)
from isoadapt.metrics import isoscore
from isoadapt.model_selection import AdapterSearchCV, compare_adapters
from tests.adapters.test_own_heads import KEEP, REFIT, class_name
from tests.cli.command_line import run
from tests.tiny_models import WORDS, logits_of, make_model, make_tokenizer, save_pair

rng = np.random.default_rng(0)
TEXTS = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(2, 12, 60)]
TARGETS = rng.integers(0, 2, (60, 3))
NAMES = {0: "toxic", 1: "rude", 2: "spam"}

# Rows and an indicator matrix, and a head that knows the directions, but whose intercepts are off.
X = rng.normal(size=(240, 8)) * np.geomspace(3, 0.3, 8) + 1
W = rng.normal(size=(3, 8))
Y = ((X - 1) @ W.T + 0.3 * rng.normal(size=(240, 3)) > [0.0, 1.0, 0.5]).astype(int)
HEAD = LinearHead(W, -W.sum(1) + [1.5, -2, 1], ["toxic", "rude", "spam"], multi_label=True)
ONE = {"max_epochs": 1, "random_state": 0}
PLAIN = {"balance": None, "validation_fraction": None, "random_state": 0}

pytestmark = [
    pytest.mark.filterwarnings("ignore:training ended at max_epochs"),
    pytest.mark.filterwarnings("ignore:this fit harms the task"),
    pytest.mark.filterwarnings("ignore:.*rows in a batch"),
]


class TestHead:
    def test_predicts_like_one_versus_rest(self):
        model = OneVsRestClassifier(LogisticRegression()).fit(X, Y)
        head = LinearHead.from_estimator(model)
        np.testing.assert_array_equal(head.predict(X), model.predict(X))
        assert head.predict(X).dtype == np.int64
        for method in ("predict_proba", "decision_function"):
            np.testing.assert_allclose(getattr(head, method)(X), getattr(model, method)(X))
        logs = head.predict_log_proba(X)
        np.testing.assert_allclose(logs, np.log(model.predict_proba(X)), atol=1e-9)
        np.testing.assert_array_equal(head.classes_, model.classes_)
        weights = rng.uniform(size=len(X))
        assert head.score(X, Y, weights) == model.score(X, Y, weights)
        assert head.score(X, csr_array(Y)) == model.score(X, Y)

    def test_columns_are_in_the_order_of_the_rows(self):
        assert HEAD.classes_.tolist() == ["toxic", "rude", "spam"]
        np.testing.assert_array_equal(HEAD.coef_, W)
        np.testing.assert_array_equal(HEAD.predict(X), (HEAD.outputs(X) > 0).astype(int))
        np.testing.assert_array_equal(HEAD._targets(Y), Y == 1)
        shown = "LinearHead(n_features=8, classes=['toxic', 'rude', 'spam'], multi_label=True)"
        assert repr(HEAD) == shown

    @pytest.mark.parametrize("n_labels", [1, 2])
    def test_one_and_two_labels_are_no_classes(self, n_labels):
        head = LinearHead(W[:n_labels], np.zeros(n_labels), multi_label=True)
        assert head.classes_.tolist() == list(range(n_labels))
        for method in ("predict", "predict_proba", "decision_function"):
            assert getattr(head, method)(X).shape == (240, n_labels)
        found = head.predict(X)
        assert head.score(X, found[:, 0] if n_labels == 1 else found) == 1
        fitted = CosRegAdapter(head, **ONE).fit(X, Y[:, :n_labels])
        assert fitted.predict(X).shape == (240, n_labels)
        assert Whitening(head=head).fit(X, Y[:, :n_labels]).predict(X).shape == (240, n_labels)

    def test_tags_are_those_of_a_multi_label_classifier(self):
        for estimator in (HEAD, CosRegAdapter(HEAD), CosRegAdapter(), Whitening(head=HEAD)):
            assert is_classifier(estimator)
            assert get_tags(estimator).classifier_tags.multi_label
        assert not get_tags(
            CosRegAdapter(LinearHead(W, [0, 0, 0], [0, 1, 2]))
        ).classifier_tags.multi_label


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y[:, 0], r"y has shape \(240,\).*classes=\['toxic', 'rude', 'spam'\]"),
        (Y[:, :2], r"y has shape \(240, 2\)"),
        (Y + 1, r"the values \[1, 2\], but must be an indicator matrix"),
        ([["toxic"], ["rude", "spam"]] * 120, "MultiLabelBinarizer"),
        ([["toxic", "rude"]] * 240, "MultiLabelBinarizer"),
        (np.array([["toxic"], ["rude", "spam"]] * 120, dtype=object), "MultiLabelBinarizer"),
    ],
)
def test_other_labels_are_refused_with_the_way_out(y, message):
    for call in (HEAD.score, CosRegAdapter(HEAD).fit):
        with pytest.raises(ValueError, match=message):
            call(X, y)
    with pytest.raises(ValueError, match=message):
        compare_adapters(X, y, ["IsoBN"], head=HEAD, encoder_saw=False)


@pytest.mark.parametrize("y", [Y + 1, 2 * Y - 1, Y + np.arange(3)])
def test_a_probe_needs_zeros_and_ones(y):
    with pytest.raises(ValueError, match="indicator matrix of 0 and 1"):
        CosRegAdapter().fit(X, y)


def test_a_head_for_one_label_refuses_an_indicator_matrix():
    for head in (
        LinearHead(W, np.zeros(3), [0, 1, 2]),
        FrozenEstimator(RidgeClassifier().fit(X, Y[:, 0])),
    ):
        with pytest.raises(ValueError, match=r"y has shape \(240, 3\), but head=.*one label"):
            CosRegAdapter(head).fit(X, Y)


NAMED = pd.DataFrame(Y, columns=HEAD.classes_)[["spam", "toxic", "rude"]]
TABLES = {
    "pandas": NAMED,
    "sparse": NAMED.astype(pd.SparseDtype(int, 0)),
    "polars": pl.from_pandas(NAMED),
    "pyarrow": pa.Table.from_pandas(NAMED),
    "Dataset": datasets.Dataset.from_pandas(NAMED),
}
SAME_ORDER = {
    "default names of pandas": pd.DataFrame(Y),
    "integers": pd.DataFrame(Y, columns=[7, 1, 2]),
    "default names of polars": pl.DataFrame(Y),
}


@pytest.mark.parametrize("y", [*TABLES.values(), *SAME_ORDER.values()], ids=[*TABLES, *SAME_ORDER])
@pytest.mark.usefixtures("fixed_penalty")
def test_columns_of_a_table_belong_to_the_labels_of_their_names(y):
    assert HEAD.score(X, y) == HEAD.score(X, Y)
    for adapter in (CosRegAdapter(HEAD, **ONE), Whitening(head=HEAD)):
        expected = clone(adapter).fit(X, Y)
        fitted = clone(adapter).fit(X, y)
        np.testing.assert_array_equal(fitted.transform(X), expected.transform(X))
        np.testing.assert_array_equal(fitted.head_.coef_, expected.head_.coef_)


def test_a_comparison_reads_the_columns_by_their_names():
    rest = {"X_test": X[160:], "head": HEAD, "encoder_saw": False, "random_state": 0}
    found, wanted = (
        compare_adapters(X[:160], y[:160], ["IsoBN"], y_test=y[160:], **rest).to_frame()
        for y in (NAMED, Y)
    )
    np.testing.assert_array_equal(found.score, wanted.score)


def test_columns_of_other_names_are_refused():
    y, message = NAMED.rename(columns={"spam": "ham"}), "'ham'.*the head has the labels 'toxic'"
    for call in (HEAD.score, CosRegAdapter(HEAD).fit, Whitening(head=HEAD).fit):
        with pytest.raises(ValueError, match=message):
            call(X, y)
    unnamed = LinearHead(W, np.zeros(3), multi_label=True)
    assert unnamed.score(X, y) == unnamed.score(X, y.to_numpy())


ONE_LABEL = LinearHead(W, np.zeros(3), ["a", "b", "c"])
WORDS_OF_ROWS = np.array(["x", "y", "z"])[Y.argmax(1)]
UNFITTING = {
    "unknown labels": (ONE_LABEL, WORDS_OF_ROWS),
    "an indicator": (ONE_LABEL, Y),
    "one label": (HEAD, Y[:, 0]),
    "one label of as many": (HEAD, WORDS_OF_ROWS),
    "fewer labels": (HEAD, Y[:, :2]),
    "more values": (LinearHead(W[:1], [0.0]), X[:, :2]),
}


@pytest.mark.parametrize(
    ("adapter", "case"),
    [
        *((each, "an indicator") for each in REFIT),
        *((Whitening(), case) for case in UNFITTING if case != "an indicator"),
    ],
    ids=class_name,
)
@pytest.mark.usefixtures("fixed_penalty")
def test_every_adapter_that_refits_warns_of_a_new_head(adapter, case):
    head, y = UNFITTING[case]
    with pytest.warns(UserWarning, match=r"unknown to the given head: .*A new head is fitted"):
        fitted = clone(adapter).set_params(head=head).fit(X, y)
    new = "ridge" if case == "more values" else "logistic"
    expected = clone(adapter).set_params(head=new).fit(X, y)
    np.testing.assert_array_equal(fitted.predict(X), expected.predict(X))
    assert fitted.head_.multi_label_ == (y.ndim == 2 and new == "logistic")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(adapter).set_params(head=HEAD).fit(X, Y)


@pytest.mark.filterwarnings("ignore:y contains labels unknown")
@pytest.mark.parametrize("adapter", REFIT, ids=class_name)
def test_values_for_a_classifier_and_labels_for_a_regressor_are_refused(adapter):
    for head, y, way_out in (
        (ONE_LABEL, X[:, 0], "head='ridge'"),
        (LinearHead(W[:1], [0.0]), WORDS_OF_ROWS, "y holds '[xyz]' in row 0"),
    ):
        with pytest.raises(ValueError, match=way_out):
            clone(adapter).set_params(head=head).fit(X, y)


@pytest.mark.filterwarnings("ignore:A column-vector y")
@pytest.mark.parametrize("adapter", [CosRegAdapter(**ONE), Whitening(), LogitPreservingWhitening()])
@pytest.mark.parametrize(
    ("head", "y"),
    [
        (MultiOutputClassifier(LogisticRegression()), Y[:, 0]),
        (MultiOutputClassifier(LogisticRegression()), Y[:, :1]),
        (ClassifierChain(LogisticRegression()), NAMED[["toxic"]]),
        (LogisticRegression(), Y),
        (GridSearchCV(LogisticRegression(), {"C": [1.0]}, cv=2), Y),
    ],
)
def test_estimators_for_another_shape_are_refused_with_the_way_out(adapter, head, y):
    with pytest.raises(ValueError, match=r"cannot be fitted to y of shape .*OneVsRestClassifier"):
        clone(adapter).set_params(head=head).fit(X, y)


ROWS_OF_LABELS = [["toxic", "rude"] if row[0] else ["spam"] for row in Y]
PAIRS_OF_LABELS = [["toxic", "rude"] if row[0] else ["rude", "spam"] for row in Y]


@pytest.mark.parametrize(
    "y",
    [
        list(map(set, ROWS_OF_LABELS)),
        list(map(frozenset, ROWS_OF_LABELS)),
        list(map(tuple, ROWS_OF_LABELS)),
        pd.Series(ROWS_OF_LABELS),
        pd.Series(list(map(set, ROWS_OF_LABELS))),
        pa.array(ROWS_OF_LABELS),
        PAIRS_OF_LABELS,
        pd.Series(PAIRS_OF_LABELS),
        np.array(PAIRS_OF_LABELS),
        [[]] * 240,
        [{"toxic": 1}, {"rude": 1}] * 120,
    ],
)
@pytest.mark.parametrize("head", ["logistic", HEAD, ONE_LABEL], ids=class_name)
@pytest.mark.filterwarnings("ignore:y contains labels unknown")
def test_lists_of_labels_are_refused_with_the_way_out(head, y):
    for adapter in (CosRegAdapter(head), Whitening(head=head)):
        with pytest.raises((TypeError, ValueError), match="MultiLabelBinarizer"):
            adapter.fit(X, y)


# Training.

INDICATORS = {
    "floats": Y.astype(float),
    "booleans": Y == 1,
    "lists": Y.tolist(),
    "sparse": csr_array(Y),
    "tensor": torch.from_numpy(Y),
    "frame": pd.DataFrame(Y),
}


@pytest.mark.parametrize("y", INDICATORS.values(), ids=INDICATORS)
@pytest.mark.parametrize("adapter", [CosRegAdapter(**ONE), Whitening(head="logistic")])
@pytest.mark.usefixtures("fixed_penalty")
def test_containers_of_indicators_give_the_same_fit(adapter, y):
    expected = clone(adapter).fit(X, Y)
    fitted = clone(adapter).fit(X, y)
    np.testing.assert_array_equal(fitted.transform(X), expected.transform(X))
    np.testing.assert_array_equal(fitted.head_.coef_, expected.head_.coef_)
    assert fitted.score(X, y) == expected.score(X, Y)


HEADS = [
    "logistic",
    HEAD,
    OneVsRestClassifier(LogisticRegression()),
    RidgeClassifier(),
    FrozenEstimator(MultiOutputClassifier(LogisticRegression()).fit(X, Y)),
]


@pytest.mark.parametrize("head", HEADS, ids=class_name)
@pytest.mark.parametrize("adapter", [*KEEP, *REFIT], ids=class_name)
@pytest.mark.usefixtures("fixed_penalty")
def test_every_adapter_takes_several_labels(adapter, head, tmp_path):
    fitted = clone(adapter).set_params(head=head).fit(X, Y)
    predicted = fitted.predict(X)
    assert predicted.shape == Y.shape
    assert fitted.score(X, Y) == accuracy_score(Y, predicted)
    outputs = fitted.head_.outputs(fitted.transform(X))
    np.testing.assert_allclose(fitted.predict_proba(X), expit(outputs), atol=1e-9)
    np.testing.assert_allclose(fitted.decision_function(X), outputs, atol=1e-9)
    names = ["toxic", "rude", "spam"] if head is HEAD else [0, 1, 2]
    assert fitted.classes_.tolist() == names
    if head is HEAD or isinstance(head, str):
        loaded = load_adapter(save_adapter(fitted, tmp_path / "a"))
        np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
        assert loaded.classes_.tolist() == names


@pytest.mark.parametrize(
    "adapter",
    [
        IsotropyLayer(HEAD, solver="exact", alpha=1.0, ridge=0.0),
        IsotropyLayer(HEAD, ridge=0.0, lr=0.02, max_epochs=30, random_state=0),
        IsotropyLayer(HEAD, ridge=0.0, head_training="joint", lr=0.02, random_state=0),
        IStarAdapter(HEAD, lam=0.1, lr=0.02, ridge=0.0, random_state=0),
        PenaltyAdapter(lambda Z: 0 * Z.mean(), HEAD, lr=0.02, ridge=0.0, random_state=0),
    ],
    ids=class_name,
)
def test_training_raises_the_score_and_lowers_the_loss(adapter):
    fitted = clone(adapter).fit(X[:160], Y[:160])
    assert fitted.score(X[160:], Y[160:]) > HEAD.score(X[160:], Y[160:]) + 0.1
    before, after = (
        log_loss(Y.ravel(), p.ravel()) for p in (HEAD.predict_proba(X), fitted.predict_proba(X))
    )
    assert after < 0.8 * before


def test_the_task_loss_is_the_binary_cross_entropy():
    outputs = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets, weights = torch.rand(2, 7, 3) > 0.5, torch.arange(7.0) + 1
    for goals in (targets, targets[0]):
        both = task_loss(outputs, goals, weights / weights.mean())
        for k in range(2):
            own = goals[k] if goals.ndim == 3 else goals
            expected = binary_cross_entropy_with_logits(
                outputs[k], own.float(), weights[:, None] / weights.mean()
            )
            torch.testing.assert_close(both[k], expected)
    ours, theirs = (
        torch.autograd.grad(loss, outputs)[0][0]
        for loss in (
            task_loss(outputs, targets)[0],
            binary_cross_entropy_with_logits(outputs[0], targets[0].float()),
        )
    )
    torch.testing.assert_close(ours, theirs)


def test_first_losses_are_the_log_loss_of_the_head():
    expected = log_loss(Y.ravel(), HEAD.predict_proba(X).ravel())
    exact = IsotropyLayer(HEAD, solver="exact", alpha=1.0).fit(X, Y)
    assert exact.history_[0]["loss"] == pytest.approx(expected)
    still = CosRegAdapter(HEAD, lam=0.0, lr=1e-12, **PLAIN, max_epochs=1).fit(X, Y)
    assert still.history_[0]["train_loss"] == pytest.approx(expected, rel=1e-5)


def test_the_exact_solver_finds_the_minimum():
    weights = rng.integers(1, 4, 240)
    fitted = IsotropyLayer(HEAD, solver="exact", alpha=1.0, ridge=0.0).fit(X, Y, weights)
    free = expit(fitted.decision_function(X)) - Y
    slopes = (weights[:, None] * free).T @ np.column_stack([X, np.ones(240)])
    assert np.abs(slopes).max() < 1e-2 * weights.sum()


@pytest.mark.parametrize("solver", ["exact", "minibatch"])
@pytest.mark.parametrize("head", [HEAD, "logistic"], ids=class_name)
def test_weights_are_repetitions(head, solver):
    adapter = IsotropyLayer(head, solver=solver, max_epochs=2, random_state=0)
    weights = rng.integers(0, 3, 240)
    rows = np.repeat(np.arange(240), weights)
    weighted = clone(adapter).fit(X, Y, sample_weight=weights)
    repeated = clone(adapter).fit(X[rows], Y[rows])
    np.testing.assert_allclose(weighted.transform(X), repeated.transform(X), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(weighted.head_.coef_, repeated.head_.coef_, rtol=1e-6, atol=1e-9)


def test_the_automatic_ridge_is_half_of_that_of_two_classes():
    y, w = Y[:, :1], np.concatenate([-W[:1], W[:1]]) / 2
    # The gradient for the difference of the logits is that of the single logit.
    classes = automatic_ridge(X, Y[:, 0], X @ w.T)
    labels = automatic_ridge(X, y == 1, X @ W[:1].T)
    assert labels == pytest.approx(classes / 2)


def test_accuracy_counts_rows_whose_labels_are_all_right():
    outputs = HEAD.outputs(X)
    score, every = Accuracy(Y == 1), np.arange(240)
    assert score(outputs, every) == accuracy_score(Y, HEAD.predict(X))
    p = score(outputs, every)
    assert score.standard_error(outputs) == pytest.approx((p * (1 - p) / 240) ** 0.5)


def test_splits_spread_frequent_combinations_of_labels():
    y = np.array([[1, 0, 0]] * 20 + [[0, 1, 1]] * 60 + [[1, 1, 1]] * 3 + [[1, 1, 0]] * 2)
    codes = strata(y)
    assert len(np.unique(codes)) == 3
    _, held = split_rows(85, codes, 0.3, np.random.RandomState(0))
    assert (y[held] == [1, 0, 0]).all(1).sum() == 6
    unique = (np.arange(64)[:, None] >> np.arange(6)) & 1
    assert len(split_rows(64, strata(unique), 0.25, np.random.RandomState(0))[1]) == 16


def test_logistic_fits_a_regression_to_each_label():
    y = np.column_stack([Y, np.zeros(240, int), np.ones(240, int)])
    head = fit_head("logistic", X, y)
    for label in range(3):
        alone = fit_head("logistic", X, y[:, label])
        np.testing.assert_allclose(head.decision_function(X)[:, label], alone.decision_function(X))
    constant = head.predict_proba(X)[:, 3:]
    np.testing.assert_allclose(constant, np.tile([0.5 / 241, 240.5 / 241], (240, 1)))
    with pytest.raises(ValueError, match="y has only one class"):
        fit_head("logistic", X, y[:, 3:])
    narrow = Whitening("pca", n_components=3, head="logistic").fit(X, y)
    assert narrow.head_.coef_.shape == (5, 3)


@pytest.mark.parametrize("scoring", [None, "f1_micro", "roc_auc"])
def test_searches_agree(scoring, monkeypatch):
    monkeypatch.setattr(_epoch_choice, "_N_DRAWS", 20)  # of bootstrap, for speed
    grid = [{"lam": [-1.0], "lr": [1e-3]}, {"lam": [1.0], "lr": [3e-2]}]
    adapter = IStarAdapter(HEAD, max_epochs=2, random_state=0, scoring=scoring)
    options = {"cv": 2, "scoring": scoring, "refit": False}
    ours = AdapterSearchCV(adapter, grid, **options).fit(X, Y)
    theirs = GridSearchCV(adapter, grid, **options).fit(X, Y)
    assert ours.unbatched_ == {}
    wanted = theirs.cv_results_["mean_test_score"]
    np.testing.assert_allclose(ours.cv_results_["mean_test_score"], wanted, atol=1e-5)
    assert np.ptp(wanted) > 0.01


@pytest.mark.parametrize(
    ("head", "test"),
    [(HEAD, {"cv": 2}), ("logistic", {"X_test": X[160:], "y_test": csr_array(Y[160:])})],
    ids=["frozen, folds", "logistic, test rows"],
)
@pytest.mark.usefixtures("fixed_penalty")
def test_adapters_are_compared_by_the_share_of_right_rows(head, test):
    n = 160 if "X_test" in test else 240
    found = compare_adapters(
        X[:n],
        Y[:n],
        {"whitening": LogitPreservingWhitening()},
        head=head,
        encoder_saw=False,
        random_state=0,
        **test,
    )
    frame = found.to_frame().query("use == 'classify'").set_index("adapter")
    assert frame.changed_predictions["whitening"] == 0
    if head is HEAD:
        rows = slice(160, None) if "X_test" in test else slice(None)
        expected = accuracy_score(Y[rows], HEAD.predict(X[rows]))
        assert frame.score["no adapter"] == pytest.approx(expected)
        probabilities = HEAD.predict_proba(X[rows]).ravel()
        wanted = log_loss(Y[rows].ravel(), probabilities)
        assert frame.cross_entropy["no adapter"] == pytest.approx(wanted)
    assert frame.difference["whitening"] == 0
    assert "neighbours" in found.uses


def test_a_penalty_of_ones_own_is_given_the_indicators():
    given = []

    def penalty(Z, labels):
        given.append(labels)
        return Z.square().mean()

    PenaltyAdapter(penalty, HEAD, **ONE).fit(X, Y)
    assert given[0].dtype == torch.int64
    assert given[0].shape[1:] == (3,)
    assert set(given[0].unique().tolist()) == {0, 1}


def test_differences_of_logits_are_not_enough():
    with pytest.raises(
        ValueError, match="preserve='differences' needs a classifier with one label"
    ):
        LogitPreservingWhitening(HEAD, preserve="differences").fit(X)


# Checkpoints.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = make_model(problem_type="multi_label_classification", id2label=NAMES)
    return save_pair(model, make_tokenizer(), tmp_path_factory.mktemp("multi-label"))


@pytest.fixture(scope="module")
def split(folder):
    encoder, head = load_checkpoint(folder)
    return encoder, head, encoder.transform(TEXTS)


def own_logits(folder, texts):
    from transformers import AutoModelForSequenceClassification

    return logits_of(AutoModelForSequenceClassification.from_pretrained(folder).eval(), texts)


def test_the_head_gives_the_models_logits(folder, split):
    _, head, X = split
    assert head.multi_label_
    np.testing.assert_allclose(head.outputs(X), own_logits(folder, TEXTS), atol=1e-4)
    np.testing.assert_allclose(head.predict_proba(X), expit(own_logits(folder, TEXTS)), atol=1e-4)


def test_adapted_encoders_are_fitted_to_an_indicator_matrix(folder, split):
    _, head, X = split
    model = AdaptedEncoder(folder, IsotropyLayer(**ONE)).fit(TEXTS, TARGETS)
    alone = IsotropyLayer(head, **ONE).fit(X, TARGETS)
    np.testing.assert_allclose(model.predict_proba(TEXTS), alone.predict_proba(X), atol=1e-6)
    np.testing.assert_array_equal(model.predict(TEXTS), alone.predict(X))
    assert model.score(TEXTS, TARGETS) == alone.score(X, TARGETS)
    np.testing.assert_array_equal(model.classes_, head.classes_)
    assert AdaptedEncoder(folder, Whitening()).fit(TEXTS, csr_array(TARGETS)).head_.multi_label_


@pytest.mark.parametrize("adapter", [IsotropyLayer(**ONE), Whitening(), IsoBN()], ids=class_name)
@pytest.mark.parametrize("kind", ["several labels", "one label"])
def test_a_head_of_the_other_kind_is_replaced_with_a_warning(adapter, kind, folder, checkpoint):
    several = kind == "several labels"
    y, source = (TARGETS, checkpoint) if several else (TARGETS[:, 0], folder)
    with pytest.warns(UserWarning, match="labels unknown to the checkpoint's head"):
        model = AdaptedEncoder(source, adapter).fit(TEXTS, y)
    assert model.head_.multi_label_ == several
    assert model.predict(TEXTS).shape == y.shape


def test_the_logits_are_preserved(folder, split):
    _, head, X = split
    model = AdaptedEncoder(str(folder), LogitPreservingWhitening()).fit(TEXTS)
    assert model.head_.multi_label_
    Z = model.transform(TEXTS)
    np.testing.assert_allclose(head.outputs(Z), head.outputs(X), atol=1e-4)
    assert isoscore(Z) > isoscore(X)


def test_whitening_needs_no_label(folder, split):
    _, head, X = split
    for adapter in (Whitening(shrinkage=0.1), Whitening(head=head, head_training="frozen")):
        assert isoscore(adapter.fit(X).transform(X)) > isoscore(X)
    assert AdaptedEncoder(str(folder), Whitening(shrinkage=0.1)).fit(TEXTS).head_ is None


def test_it_is_saved_and_merged_with_its_labels(folder, split, tmp_path):
    encoder, head, X = split
    adapter = LogitPreservingWhitening(head).fit(X)
    loaded = load_adapter(save_adapter(adapter, tmp_path / "a", base_model=encoder))
    assert loaded.head.multi_label_
    card = (tmp_path / "a" / "README.md").read_text()
    assert "is a multi-label classifier with 3 labels: " in card
    out = merge_into_checkpoint(make_pipeline(encoder, loaded), folder, tmp_path / "out")
    np.testing.assert_allclose(own_logits(out, TEXTS), own_logits(folder, TEXTS), atol=1e-4)
    own, merged = (json.loads((path / "config.json").read_text()) for path in (folder, out))
    assert merged["problem_type"] == "multi_label_classification"
    assert merged["id2label"] == own["id2label"] == {str(k): v for k, v in NAMES.items()}
    assert load_checkpoint(out)[1].multi_label_


def test_a_head_of_another_kind_is_not_merged(folder, split, checkpoint, tmp_path):
    X = split[2]
    ridge = Whitening(head="ridge").fit(X, TARGETS)
    with pytest.raises(
        ValueError, match=r"multi_label=True\): both must be classifiers, multi-label classifiers"
    ):
        merge_into_checkpoint(ridge, folder, tmp_path / "out")
    classifier = Whitening(head="logistic").fit(X, rng.integers(0, 3, 60))
    with pytest.raises(ValueError, match="multi-label"):
        merge_into_checkpoint(classifier, folder, tmp_path / "out")
    many = LogitPreservingWhitening(split[1]).fit(X)
    with pytest.raises(ValueError, match="multi-label"):
        merge_into_checkpoint(many, checkpoint, tmp_path / "out")


def test_a_head_of_ones_own_is_merged(folder, split, tmp_path):
    _, head, X = split
    own = LinearHead(2 * head.coef_, 2 * head.intercept_, multi_label=True)
    adapter = Whitening(head=own, head_training="frozen", strength=0.0, shrinkage=0.1).fit(X)
    out = merge_into_checkpoint(adapter, folder, tmp_path / "out")
    expected = own.outputs(adapter.transform(TransformerEncoder(folder).transform(TEXTS)))
    np.testing.assert_allclose(own_logits(out, TEXTS), expected, atol=1e-4)


@pytest.mark.parametrize("export", [merge_into_checkpoint, to_sentence_transformer])
def test_exported_pipelines_give_the_probabilities_of_the_adapter(export, folder, tmp_path):
    from transformers import pipeline

    model = AdaptedEncoder(folder, IsotropyLayer(ridge=1.0, **ONE)).fit(TEXTS, TARGETS)
    out = export(model, folder, tmp_path / "out")
    found = pipeline("text-classification", model=str(out), top_k=None)(TEXTS)
    scores = [{each["label"]: each["score"] for each in row} for row in found]
    table = [[row[NAMES[label]] for label in range(3)] for row in scores]
    np.testing.assert_allclose(table, model.predict_proba(TEXTS), atol=1e-4)


def test_names_in_another_order_are_those_of_the_checkpoint(folder, split, tmp_path):
    _, head, X = split
    order = [2, 0, 1]
    names = [NAMES[label] for label in order]
    own = LinearHead(head.coef_[order], head.intercept_[order], names, multi_label=True)
    out = merge_into_checkpoint(LogitPreservingWhitening(own).fit(X), folder, tmp_path / "out")
    np.testing.assert_allclose(own_logits(out, TEXTS), own_logits(folder, TEXTS), atol=1e-4)


def test_the_command_line_ignores_labels_that_are_not_needed(folder, tmp_path):
    rows = [f"{text}\t{label}" for text, label in zip(TEXTS, TARGETS[:, 0], strict=True)]
    (tmp_path / "t.tsv").write_text("\n".join(["sentence\tlabel", *rows, ""]))
    options = ["--on", tmp_path / "t.tsv", "--model", folder]
    kept = run("fit", "logit-preserving-whitening", *options, "--out", tmp_path / "a")
    assert "accuracy" not in kept.stdout
    assert load_adapter(tmp_path / "a").head_.multi_label_
    fresh = run("fit", "isotropy-layer", *options, "--out", tmp_path / "b")
    assert re.search("knows an indicator matrix", " ".join(fresh.stderr.split()))
    assert not load_adapter(tmp_path / "b").head_.multi_label_
