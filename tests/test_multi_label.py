"""Checkpoints with a multi-label head: what needs only its weights works, the rest says why not."""

import json
import re

import numpy as np
import pytest
from sklearn.base import is_classifier, is_regressor
from sklearn.pipeline import make_pipeline

from isoadapt import (
    AdaptedEncoder,
    AllButTheTop,
    ClusterIsotropy,
    FlowAdapter,
    IsoBN,
    IsotropyLayer,
    LinearHead,
    LogitPreservingWhitening,
    TransformerEncoder,
    Whitening,
    load_checkpoint,
)
from isoadapt.heads import MultiLabelHead
from isoadapt.interop import load_adapter, merge_into_checkpoint, save_adapter
from isoadapt.metrics import isoscore
from tests.cli.command_line import run
from tests.tiny_models import WORDS, logits_of, make_model, make_tokenizer, save_pair

rng = np.random.default_rng(0)
TEXTS = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(2, 12, 60)]
TARGETS = rng.integers(0, 2, (60, 3))
NAMES = {0: "toxic", 1: "rude", 2: "spam"}


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
    assert isinstance(head, MultiLabelHead)
    assert head.classes_ is None
    assert not is_classifier(head)
    assert not is_regressor(head)
    np.testing.assert_allclose(head.outputs(X), own_logits(folder, TEXTS), atol=1e-4)
    assert repr(head) == "MultiLabelHead(n_features=16, n_labels=3)"


@pytest.mark.parametrize(
    "call",
    [
        lambda head, X: head.predict(X),
        lambda head, X: head.score(X, TARGETS),
        lambda head, X: head._targets(TARGETS),
        lambda head, X: LogitPreservingWhitening(head).fit(X).predict(X),
        lambda head, X: LogitPreservingWhitening(head).fit(X).score(X, TARGETS),
        lambda head, X: IsotropyLayer(head).fit(X, TARGETS),
        lambda head, X: IsotropyLayer(head).fit(X),
        lambda head, X: Whitening(head=head).fit(X, TARGETS),
        lambda head, X: IsoBN(head=head).fit(X, TARGETS[:, 0]),
        lambda head, X: FlowAdapter(head=head).fit(X, TARGETS),
    ],
)
def test_what_needs_one_label_a_text_is_refused(call, split):
    with pytest.raises(ValueError, match=r"multi-label head.*(outputs\(X\)|LogitPreserving)"):
        call(*split[1:])


def test_the_logits_are_preserved(folder, split):
    _, head, X = split
    model = AdaptedEncoder(str(folder), LogitPreservingWhitening()).fit(TEXTS)
    assert isinstance(model.head_, MultiLabelHead)
    Z = model.transform(TEXTS)
    np.testing.assert_allclose(head.outputs(Z), head.outputs(X), atol=1e-4)
    assert isoscore(Z) > isoscore(X)


def test_whitening_needs_no_label(folder, split):
    _, head, X = split
    for adapter in (Whitening(shrinkage=0.1), Whitening(head=head, head_training="frozen")):
        assert isoscore(adapter.fit(X).transform(X)) > isoscore(X)
    assert AdaptedEncoder(str(folder), Whitening(shrinkage=0.1)).fit(TEXTS).head_ is None


@pytest.mark.parametrize(
    "adapter",
    [
        Whitening(shrinkage=0.1),
        IsoBN(),
        AllButTheTop(),
        ClusterIsotropy(n_clusters=2, random_state=0),
        IsotropyLayer(head=None, random_state=0),
    ],
)
@pytest.mark.parametrize("y", [TARGETS, TARGETS[:, 0]])
def test_adapters_without_a_head_take_labels(adapter, y, folder):
    model = AdaptedEncoder(str(folder), adapter).fit(TEXTS, y)
    assert model.head_ is None
    expected = AdaptedEncoder(str(folder), adapter).fit(TEXTS).transform(TEXTS)
    np.testing.assert_array_equal(model.transform(TEXTS), expected)


def test_the_command_line_names_the_adapters_that_it_fits(folder, tmp_path):
    message = fit_on_a_table("isotropy-layer", folder, tmp_path)
    assert re.search(r"multi-label.*Whitening, IsoBN.*--set head=None", message)
    out = fit_on_a_table("isotropy-layer", folder, tmp_path, "head=None")
    assert load_adapter(out).head_ is None


def fit_on_a_table(name, folder, tmp_path, *settings):
    rows = [f"{text}\t{label}" for text, label in zip(TEXTS, TARGETS[:, 0], strict=True)]
    (tmp_path / "t.tsv").write_text("\n".join(["sentence\tlabel", *rows, ""]))
    options = ["--on", tmp_path / "t.tsv", "--out", tmp_path / "a", "--model", folder]
    completed = run("fit", name, *options, *(["--set", *settings] if settings else []))
    return tmp_path / "a" if completed.code in (None, 0) else completed.code


def test_the_refusal_names_only_adapters_that_take_the_head(split):
    _, head, X = split
    frozen = IsotropyLayer(head, head_training="frozen")
    with pytest.raises(ValueError, match="multi-label head") as refusal:
        frozen.fit(X, TARGETS)
    for cls in (Whitening, IsoBN, AllButTheTop, ClusterIsotropy):
        assert cls.__name__ in str(refusal.value)
        cls(head=head, head_training="frozen").fit(X)
    assert "IsotropyLayer" not in str(refusal.value).partition(":")[2]


def test_it_is_saved_and_merged_with_its_labels(folder, split, tmp_path):
    encoder, head, X = split
    adapter = LogitPreservingWhitening(head).fit(X)
    loaded = load_adapter(save_adapter(adapter, tmp_path / "a", base_model=encoder))
    assert isinstance(loaded.head, MultiLabelHead)
    assert isinstance(loaded.head_, MultiLabelHead)
    card = (tmp_path / "a" / "README.md").read_text()
    assert "is a multi-label classifier with 3 labels" in card
    out = merge_into_checkpoint(make_pipeline(encoder, loaded), folder, tmp_path / "out")
    np.testing.assert_allclose(own_logits(out, TEXTS), own_logits(folder, TEXTS), atol=1e-4)
    own, merged = (json.loads((path / "config.json").read_text()) for path in (folder, out))
    assert merged["problem_type"] == "multi_label_classification"
    assert merged["id2label"] == own["id2label"] == {str(k): v for k, v in NAMES.items()}
    assert isinstance(load_checkpoint(out)[1], MultiLabelHead)


def test_a_head_of_another_kind_is_not_merged(folder, split, checkpoint, tmp_path):
    X = split[2]
    ridge = Whitening(head="ridge").fit(X, TARGETS)
    with pytest.raises(ValueError, match=r"multi-label.*MultiLabelHead\(coef, intercept\)"):
        merge_into_checkpoint(ridge, folder, tmp_path / "out")
    classifier = Whitening(head="logistic").fit(X, rng.integers(0, 3, 60))
    with pytest.raises(ValueError, match="multi-label"):
        merge_into_checkpoint(classifier, folder, tmp_path / "out")
    many = LogitPreservingWhitening(split[1]).fit(X)
    with pytest.raises(ValueError, match="multi-label"):
        merge_into_checkpoint(many, checkpoint, tmp_path / "out")


def test_a_head_of_ones_own_is_merged(folder, split, tmp_path):
    _, head, X = split
    own = MultiLabelHead(2 * head.coef_, 2 * head.intercept_)
    assert isinstance(own, LinearHead)
    adapter = Whitening(head=own, head_training="frozen", strength=0.0, shrinkage=0.1).fit(X)
    out = merge_into_checkpoint(adapter, folder, tmp_path / "out")
    expected = own.outputs(adapter.transform(TransformerEncoder(folder).transform(TEXTS)))
    np.testing.assert_allclose(own_logits(out, TEXTS), expected, atol=1e-4)
