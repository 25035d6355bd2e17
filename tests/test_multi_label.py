"""Multi-label heads: one sigmoid for each label, from checkpoints and from labels."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.sparse import csr_array
from scipy.special import expit
from sklearn.base import clone, is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags
from torch.autograd import grad
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoModelForSequenceClassification

from isoadapt import AdaptedEncoder, CosRegAdapter, LinearHead, Whitening, adapters, load_checkpoint
from isoadapt.adapters._engine._choice import Accuracy
from isoadapt.adapters._engine._loop import task_loss
from isoadapt.adapters._engine._output_ridge import automatic_ridge
from isoadapt.adapters._heads import fit_head
from isoadapt.adapters._rows import split_rows, strata
from isoadapt.interop import load_adapter, merge_into_checkpoint, save_adapter
from isoadapt.model_selection import compare_adapters
from tests.adapters.examples import class_name
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
ONE_LABEL, VALUE = LinearHead(W, np.zeros(3), ["a", "b", "c"]), LinearHead(W[:1], [0.0])
WORD = np.array(["x", "y", "z"])[Y.argmax(1)]
ONE = {"max_epochs": 1, "random_state": 0}
NAMED = pd.DataFrame(Y, columns=HEAD.classes_)[["spam", "toxic", "rude"]]

pytestmark = [
    pytest.mark.filterwarnings("ignore:(training ended at max_epochs|this fit harms the task)"),
    pytest.mark.filterwarnings("ignore:.*rows in a batch"),
]


class TestHead:
    def test_it_predicts_like_one_versus_rest(self):
        model = OneVsRestClassifier(LogisticRegression()).fit(X, Y)
        head, weights = LinearHead.from_estimator(model), rng.uniform(size=len(X))
        np.testing.assert_array_equal(head.predict(X), model.predict(X))
        assert head.predict(X).dtype == np.int64
        for method in ("predict_proba", "decision_function"):
            np.testing.assert_allclose(getattr(head, method)(X), getattr(model, method)(X))
        logs = head.predict_log_proba(X)
        np.testing.assert_allclose(logs, np.log(model.predict_proba(X)), atol=1e-9)
        assert head.score(X, Y, weights) == model.score(X, Y, weights)

    @pytest.mark.parametrize("n_labels", [1, 2])
    @pytest.mark.usefixtures("fixed_penalty")
    def test_one_and_two_labels_are_no_classes(self, n_labels):
        head = LinearHead(W[:n_labels], np.zeros(n_labels), multi_label=True)
        for method in ("predict", "predict_proba", "decision_function"):
            assert getattr(head, method)(X).shape == (240, n_labels)
        for adapter in (CosRegAdapter(head, **ONE), Whitening(head=head)):
            assert adapter.fit(X, Y[:, :n_labels]).predict(X).shape == (240, n_labels)
        for estimator in (head, CosRegAdapter(), Whitening(head=head)):
            assert is_classifier(estimator)
            assert get_tags(estimator).classifier_tags.multi_label

    @pytest.mark.parametrize(
        "y",
        [
            NAMED,
            pl.from_pandas(NAMED),
            pd.DataFrame(Y, columns=[7, 1, 2]),  # numbers keep their places
            csr_array(Y),
        ],
    )
    @pytest.mark.usefixtures("fixed_penalty")
    def test_columns_of_a_table_belong_to_the_labels_of_their_names(self, y):
        assert HEAD.score(X, y) == HEAD.score(X, Y)
        for adapter in (adapters.ExactIsotropyLayer(HEAD), Whitening(head=HEAD)):
            expected, fitted = (clone(adapter).fit(X, each) for each in (Y, y))
            np.testing.assert_array_equal(fitted.transform(X), expected.transform(X))
            np.testing.assert_array_equal(fitted.head_.coef_, expected.head_.coef_)


@pytest.mark.parametrize(
    ("head", "y", "message"),
    [
        (HEAD, Y[:, 0], r"y has shape \(240,\).*'toxic'"),
        (HEAD, 2 * Y, r"\[0, 2\]"),
        (HEAD, NAMED.rename(columns={"spam": "ham"}), "'ham'.*'toxic'"),
        ("logistic", Y + 1, "indicator matrix"),
        (ONE_LABEL, Y, "one label"),
        (HEAD, [["toxic", "rude"] if row[0] else ["spam"] for row in Y], "MultiLabelBinarizer"),
    ],
)
@pytest.mark.filterwarnings("ignore:A column-vector y")
def test_other_labels_are_refused_with_the_way_out(head, y, message):
    calls = [CosRegAdapter(head, **ONE).fit]
    calls += [head.score] if head is HEAD else []
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=message):
            call(X, y)


@pytest.mark.parametrize(
    ("head", "y"), [(ONE_LABEL, WORD), (ONE_LABEL, Y), (HEAD, WORD), (VALUE, X[:, :2])]
)
def test_a_head_that_is_refitted_must_know_the_labels_too(head, y):
    with pytest.raises(ValueError, match=r"head='(logistic|ridge)'|MultiLabelBinarizer"):
        Whitening(head=head).fit(X, y)


# Training.

KINDS = [
    (adapters.IsotropyLayer(**ONE), OneVsRestClassifier(LogisticRegression())),
    (adapters.IStarAdapter(**ONE), HEAD),
    (adapters.FlowAdapter(alpha=0.5, n_blocks=2, hidden=8, **ONE), "logistic"),
    (Whitening("pca", n_components=3), "logistic"),
    (Whitening(), FrozenEstimator(MultiOutputClassifier(LogisticRegression()).fit(X, Y))),
]


@pytest.mark.parametrize(("adapter", "head"), KINDS, ids=class_name)
@pytest.mark.usefixtures("fixed_penalty")
def test_every_kind_of_adapter_takes_several_labels(adapter, head, tmp_path):
    fitted = clone(adapter).set_params(head=head).fit(X, Y)
    assert fitted.score(X, Y) == accuracy_score(Y, fitted.predict(X))
    outputs = fitted.head_.outputs(fitted.transform(X))
    np.testing.assert_allclose(fitted.predict_proba(X), expit(outputs), atol=1e-9)
    np.testing.assert_allclose(fitted.decision_function(X), outputs, atol=1e-9)
    loaded = load_adapter(save_adapter(fitted, tmp_path / "a"))
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    assert loaded.classes_.tolist() == fitted.classes_.tolist()


def test_the_task_loss_is_the_binary_cross_entropy():
    outputs = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets, weights = torch.rand(2, 7, 3) > 0.5, torch.arange(7.0) + 1
    weights = weights / weights.mean()
    for goals in (targets, targets[0]):
        found = task_loss(outputs, goals, weights)
        for k in range(2):
            own = (goals[k] if goals.ndim == 3 else goals).float()
            wanted = binary_cross_entropy_with_logits(outputs[k], own, weights[:, None])
            torch.testing.assert_close(found[k], wanted)
            gradients = (grad(each, outputs, retain_graph=True)[0] for each in (found[k], wanted))
            torch.testing.assert_close(*gradients)


def test_first_losses_are_the_log_loss_of_the_head_and_the_exact_solver_finds_the_minimum():
    expected = log_loss(Y.ravel(), HEAD.predict_proba(X).ravel())
    still = {"balance": None, "validation_fraction": None, "random_state": 0}
    still = CosRegAdapter(HEAD, lam=0.0, lr=1e-12, **still, max_epochs=1).fit(X, Y)
    assert still.history_[0]["train_loss"] == pytest.approx(expected, rel=1e-5)
    exact = adapters.ExactIsotropyLayer(HEAD, alpha=1.0, ridge=0.0)
    assert exact.fit(X, Y).history_[0]["loss"] == pytest.approx(expected)
    weights = rng.integers(1, 4, 240)
    free = expit(exact.fit(X, Y, weights).decision_function(X)) - Y
    slopes = (weights[:, None] * free).T @ np.column_stack([X, np.ones(240)])
    assert np.abs(slopes).max() < 1e-2 * weights.sum()


def test_the_automatic_ridge_is_half_of_that_of_two_classes():
    # The gradient for the difference of the logits is that of the single logit.
    two = np.concatenate([-W[:1], W[:1]]) / 2
    classes = automatic_ridge(X, Y[:, 0], X @ two.T)
    assert automatic_ridge(X, Y[:, :1] == 1, X @ W[:1].T) == pytest.approx(classes / 2)


def test_accuracy_counts_rows_that_are_all_right_and_splits_spread_frequent_combinations():
    assert Accuracy(Y == 1)(HEAD.outputs(X)) == accuracy_score(Y, HEAD.predict(X))
    y = np.array([[1, 0, 0]] * 20 + [[0, 1, 1]] * 60 + [[1, 1, 1]] * 3 + [[1, 1, 0]] * 2)
    assert len(np.unique(strata(y))) == 3
    _, held = split_rows(85, strata(y), 0.3, np.random.RandomState(0))
    assert (y[held] == [1, 0, 0]).all(1).sum() == 6


@pytest.mark.usefixtures("fixed_penalty")
def test_logistic_fits_a_regression_to_each_label():
    y = np.column_stack([Y, np.zeros(240, int), np.ones(240, int)])
    head = fit_head("logistic", X, y)
    for label in range(3):
        alone = fit_head("logistic", X, y[:, label])
        np.testing.assert_allclose(head.decision_function(X)[:, label], alone.decision_function(X))
    constant = head.predict_proba(X)[:, 3:]
    np.testing.assert_allclose(constant, np.tile([0.5 / 241, 240.5 / 241], (240, 1)))
    with pytest.raises(ValueError, match="one class"):
        fit_head("logistic", X, y[:, 3:])


def test_adapters_are_compared_by_the_share_of_right_rows():
    rows, models = slice(160, None), {"whitening": adapters.LogitPreservingWhitening()}
    options = {"head": HEAD, "encoder_saw": False, "random_state": 0}
    options |= {"X_test": X[rows], "y_test": NAMED[rows]}
    frame = compare_adapters(X[:160], NAMED[:160], models, **options).to_frame()
    frame = frame.query("use == 'classify'").set_index("adapter")
    assert frame.changed_predictions["whitening"] == frame.difference["whitening"] == 0
    expected = accuracy_score(Y[rows], HEAD.predict(X[rows]))
    assert frame.score["no adapter"] == pytest.approx(expected)
    wanted = log_loss(Y[rows].ravel(), HEAD.predict_proba(X[rows]).ravel())
    assert frame.cross_entropy["no adapter"] == pytest.approx(wanted)


# Checkpoints.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = make_model(problem_type="multi_label_classification", id2label=NAMES)
    return save_pair(model, make_tokenizer(), tmp_path_factory.mktemp("multi-label"))


@pytest.fixture(scope="module")
def split(folder):
    encoder, head = load_checkpoint(folder)
    return encoder, head, encoder.transform(TEXTS)


def own_logits(folder):
    return logits_of(AutoModelForSequenceClassification.from_pretrained(folder).eval(), TEXTS)


def test_adapted_encoders_are_fitted_to_an_indicator_matrix(folder, split):
    _, head, X = split
    assert head.multi_label_
    np.testing.assert_allclose(head.outputs(X), own_logits(folder), atol=1e-4)
    model = AdaptedEncoder(folder, adapters.IsotropyLayer(**ONE)).fit(TEXTS, TARGETS)
    alone = adapters.IsotropyLayer(head, **ONE).fit(X, TARGETS)
    np.testing.assert_allclose(model.predict_proba(TEXTS), alone.predict_proba(X), atol=1e-6)
    assert model.score(TEXTS, TARGETS) == alone.score(X, TARGETS)


def test_it_is_saved_and_merged_with_its_labels(folder, split, checkpoint, tmp_path):
    encoder, head, X = split
    order = [2, 0, 1]
    names = [NAMES[label] for label in order]
    turned = LinearHead(head.coef_[order], head.intercept_[order], names, multi_label=True)
    adapter = adapters.LogitPreservingWhitening(turned).fit(X)
    loaded = load_adapter(save_adapter(adapter, tmp_path / "a", base_model=encoder))
    assert "multi_label=True" in (tmp_path / "a" / "README.md").read_text()
    with pytest.raises(ValueError, match="repair nothing"):
        merge_into_checkpoint(make_pipeline(encoder, loaded), folder, tmp_path / "out")
    bare = Whitening(shrinkage=0.5).fit(X)
    out = merge_into_checkpoint(make_pipeline(encoder, bare, turned), folder, tmp_path / "out")
    expected = head.outputs(bare.transform(encoder.transform(TEXTS)))
    np.testing.assert_allclose(own_logits(out), expected, atol=1e-4)
    own, merged = (json.loads((path / "config.json").read_text()) for path in (folder, out))
    assert merged["problem_type"] == "multi_label_classification"
    assert merged["id2label"] == own["id2label"]
    for head, target in ((Whitening(head="ridge").fit(X, TARGETS), folder), (adapter, checkpoint)):
        with pytest.raises(ValueError, match="multi_label=True"):
            merge_into_checkpoint(head, target, tmp_path / "other")
