"""Splitting a checkpoint into encoder and head, and the checkpoints that are refused."""

import numpy as np
import pytest

from isoadapt.encoders import load_checkpoint
from tests.tiny_models import (
    ARCHITECTURES,
    PAIRS,
    TEXTS,
    logits_of,
    make_model,
    make_tokenizer,
    mostly_slow,
    save_model,
)

QUICK = ("bert", "roberta", "distilbert", "xlnet", "gpt2")  # each with a head of its own


@pytest.mark.parametrize("architecture", mostly_slow(ARCHITECTURES, QUICK))
def test_head_of_embeddings_gives_the_logits_of_the_model(architecture, tmp_path):
    save_model(tmp_path, architecture)
    encoder, head = load_checkpoint(tmp_path, max_length=60)
    assert head.classes_.tolist() == [0, 1, 2]
    assert head.coef_.dtype == head.intercept_.dtype == np.float64
    for inputs in (TEXTS, PAIRS[:4]):
        expected = logits_of(make_model(architecture), inputs, architecture)
        assert np.ptp(expected, axis=0).max() > 0.01
        found = head.outputs(encoder.transform(inputs))
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_last_token_is_found_though_text_holds_the_end_token(tmp_path):
    texts = ["the cat [SEP]", "a dog [SEP] ran far", "[SEP] [SEP]", "the mat was far"]
    encoder, head = load_checkpoint(save_model(tmp_path, "gpt2"))
    expected = logits_of(make_model("gpt2"), texts, "gpt2")
    np.testing.assert_allclose(head.outputs(encoder.transform(texts)), expected, atol=1e-4)
    assert not head.intercept_.any()  # its head has no bias


def test_head_of_a_regression_with_several_outputs(tmp_path):
    encoder, head = load_checkpoint(save_model(tmp_path, problem_type="regression"))
    assert head.classes_ is None
    found = head.predict(encoder.transform(TEXTS))
    np.testing.assert_allclose(found, logits_of(make_model(), TEXTS), atol=1e-4)


def test_hidden_layer_as_wide_as_the_head_is_not_taken_for_it():
    model = make_model("roberta", num_labels=16)
    head = load_checkpoint((model, make_tokenizer("roberta")))[1]
    own = model.classifier.out_proj.weight.detach().double().numpy()
    np.testing.assert_array_equal(head.coef_, own)


def test_a_live_model_without_head_is_refused():
    with pytest.raises(ValueError, match="no classifier head"):
        load_checkpoint((make_model(kind="AutoModel"), make_tokenizer()))


def test_logits_that_are_not_linear_are_refused(live):
    model, tokenizer = live

    class Squashed(type(model)):
        def forward(self, input_ids, **inputs):
            output = super().forward(input_ids, **inputs)
            output.logits = 2 * output.logits.tanh()
            return output

    model.__class__ = Squashed
    with pytest.raises(ValueError, match="cannot be split"):
        load_checkpoint((model, tokenizer))


def test_real_model_gives_the_published_vectors(shared):
    lines = (shared / "data/cola/dev.tsv").read_text("utf-8").splitlines()[1:]
    stored = np.load(shared / "embeddings/cola.npz")
    encoder, head = load_checkpoint(shared / "models/cola-minilm", max_length=128)
    embeddings = encoder.transform([line.split("\t")[0] for line in lines[::80]])
    np.testing.assert_allclose(embeddings, stored["E_dev"][::80], atol=1e-4)
    np.testing.assert_allclose(head.coef_, stored["W"], atol=1e-6)
    assert round(float(np.mean(head.predict(stored["E_dev"]) == stored["y_dev"])), 4) == 0.7421
