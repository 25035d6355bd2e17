"""Splitting a checkpoint into encoder and head, and the checkpoints that are refused."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from isoadapt.encoders import TransformerEncoder, load_checkpoint
from isoadapt.encoders._checkpoint import read_head
from tests.tiny_models import ARCHITECTURES, PAIRS, TEXTS, make_model, make_tokenizer, save_model


def logits_one_by_one(model, tokenizer, inputs):
    """Compute the model's own logits for each input alone, without padding."""
    rows = []
    for item in inputs:
        # Lists are needed because a call with strings drops an empty second text.
        args = [[text] for text in (item if isinstance(item, tuple) else (item,))]
        encoded = tokenizer(*args, return_tensors="pt")
        if encoded["input_ids"].shape[1] == 0:
            encoded = tokenizer("[SEP]", return_tensors="pt")
        with torch.inference_mode():
            rows.append(model(**encoded).logits[0].double().numpy())
    return np.array(rows)


def head_logits(head, embeddings):
    return embeddings @ head.coef_.T + head.intercept_


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_head_of_embeddings_gives_the_logits_of_the_model(architecture, tmp_path):
    save_model(tmp_path, architecture)
    model, tokenizer = make_model(architecture), make_tokenizer(architecture)
    encoder, head = load_checkpoint(tmp_path, max_length=60)
    assert head.classes_.tolist() == [0, 1, 2]
    assert head.coef_.dtype == head.intercept_.dtype == np.float64
    with ThreadPoolExecutor(2) as threads:
        for inputs in (TEXTS, PAIRS):
            expected = logits_one_by_one(model, tokenizer, inputs)
            assert np.ptp(expected, axis=0).max() > 0.01
            embeddings = encoder.transform(inputs)
            np.testing.assert_allclose(
                head_logits(head, embeddings), expected, atol=1e-5 * np.abs(expected).max()
            )
            for again in threads.map(encoder.transform, [inputs] * 4):
                np.testing.assert_array_equal(again, embeddings)


def test_last_token_is_found_though_text_holds_the_end_token(tmp_path):
    save_model(tmp_path, "gpt2")
    texts = ["the cat [SEP]", "a dog [SEP] ran far", "[SEP] [SEP]", "the mat was far"]
    expected = logits_one_by_one(make_model("gpt2"), make_tokenizer("gpt2"), texts)
    encoder, head = load_checkpoint(tmp_path)
    np.testing.assert_allclose(head_logits(head, encoder.transform(texts)), expected, atol=1e-4)


def test_padding_token_of_the_model_alone_does_not_mix_rows():
    model, tokenizer = make_model("gpt2", pad_token_id=3), make_tokenizer("gpt2")
    expected = logits_one_by_one(model, tokenizer, TEXTS[:2] + TEXTS[3:7])
    encoder, head = load_checkpoint((model, tokenizer))
    got = head_logits(head, encoder.transform(TEXTS[:2] + TEXTS[3:7]))
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_head_without_bias_gets_zeros(tmp_path):
    head = load_checkpoint(save_model(tmp_path, "gpt2"))[1]
    assert not head.intercept_.any()


@pytest.mark.parametrize("changes", [{"num_labels": 1}, {"problem_type": "regression"}])
def test_regression_head(changes, tmp_path):
    encoder, head = load_checkpoint(save_model(tmp_path, **changes))
    assert head.classes_ is None
    expected = logits_one_by_one(make_model(**changes), make_tokenizer(), TEXTS)
    np.testing.assert_allclose(head_logits(head, encoder.transform(TEXTS)), expected, atol=1e-4)


def test_hidden_layer_as_wide_as_the_head_is_not_taken_for_it(tmp_path):
    save_model(tmp_path, "roberta", num_labels=16)
    head = load_checkpoint(tmp_path)[1]
    own = make_model("roberta", num_labels=16).classifier.out_proj
    np.testing.assert_array_equal(head.coef_, own.weight.detach().double().numpy())


def test_checkpoint_without_head_is_refused(bare_checkpoint):
    with pytest.raises(ValueError, match=r"no weights for classifier.bias, classifier.weight"):
        load_checkpoint(bare_checkpoint)
    with pytest.raises(ValueError, match="no classifier head"):
        read_head(TransformerEncoder(bare_checkpoint))


@pytest.mark.parametrize(
    ("options", "part", "message"),
    [
        ({}, "classifier", "classifier.bias, classifier.weight"),
        ({"kind": "AutoModel"}, "layer.1.", "encoder.layer.1.*, …"),
    ],
)
def test_missing_weights_are_refused(options, part, message, tmp_path):
    """The configuration names a classifier or a layer whose weights are missing."""
    save_model(tmp_path, **options)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: value for name, value in weights.items() if part not in name}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"no weights for {message}"):
        TransformerEncoder(tmp_path).transform(TEXTS)


def test_head_of_another_shape_is_refused(tmp_path):
    save_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["id2label"] = {str(i): str(i) for i in range(5)}
    config["label2id"] = {str(i): i for i in range(5)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"classifier.bias .* \(3,\), but .* asks for \(5,\)"):
        load_checkpoint(tmp_path)


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
    embeddings = encoder.transform([line.split("\t")[0] for line in lines[::6]])
    np.testing.assert_allclose(embeddings, stored["E_dev"][::6], atol=1e-4)
    np.testing.assert_allclose(head.coef_, stored["W"], atol=1e-6)
    assert round(float(np.mean(head.predict(stored["E_dev"]) == stored["y_dev"])), 4) == 0.7421
