"""Every architecture gives a text the same vector in a batch and alone, or raises an error."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from isoadapt.encoders import TransformerEncoder, _opened, layer_report, load_checkpoint
from isoadapt.encoders._opened import Opened
from tests.tiny_models import (
    ARCHITECTURES,
    LEAKING,
    MORE_ARCHITECTURES,
    REFUSED,
    TEXTS,
    logits_of,
    make_model,
    make_tokenizer,
    mostly_slow,
    save_model,
)

ALL = [*ARCHITECTURES, *MORE_ARCHITECTURES]
QUICK = ["fnet", "convbert", "big_bird", "bert", "deberta-v2", "xlnet", "gpt2", "bart", "t5"]
QUICK += ["llama", "ibert"]
pytestmark = pytest.mark.filterwarnings("ignore:.*different texts are fewer")


@pytest.fixture
def mixed(spy, monkeypatch):
    """Whether texts of different lengths were in one batch, one entry for each after the probe."""
    lengths = lambda *args: set(args[2]["attention_mask"].sum(1).tolist())  # noqa: E731
    seen = spy(_opened, "embed_batch", lambda *args: len(lengths(*args)) > 1)
    probe = Opened._padding_changes_vectors
    unseen = lambda opened: (probe(opened), seen.clear())[0]  # noqa: E731
    monkeypatch.setattr(Opened, "_padding_changes_vectors", unseen)
    return seen


@pytest.mark.parametrize("architecture", mostly_slow(ALL, QUICK))
def test_a_text_has_the_same_vector_alone_and_in_a_batch(architecture, mixed):
    live = make_model(architecture), make_tokenizer(architecture)
    for pooling in ("head_input", "mean"):
        encoder = TransformerEncoder(live, pooling=pooling, max_length=60)
        mixed.clear()
        together = encoder.transform(TEXTS)
        assert pooling == "head_input" or any(mixed) is (architecture not in LEAKING)
        expected = np.concatenate([encoder.transform([text]) for text in TEXTS])
        assert np.ptp(expected, axis=0).max() > 0.01
        np.testing.assert_allclose(together, expected, atol=1e-4)


@pytest.mark.parametrize("pad", ["[PAD]", "[SEP]"])
@pytest.mark.parametrize("architecture", ["bart", "t5"])
def test_a_batch_has_texts_with_the_same_number_of_end_tokens(architecture, pad, mixed):
    """Classifiers of these families read the state of the last one, and refuse other batches."""
    model, tokenizer = make_model(architecture), make_tokenizer(architecture)
    tokenizer.pad_token = pad
    encoder, head = load_checkpoint((model, tokenizer))
    texts = ["the cat", "a dog [SEP] ran", "[SEP]", "[SEP] [SEP] cat", "", "a bird flew [SEP]"]
    found = head.outputs(encoder.transform(texts * 20))
    expected = np.tile(logits_of(model, texts, architecture), (20, 1))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    if pad == "[PAD]":
        assert mixed == [True, True, False]  # for 1, 2 and 3 end tokens
    with pytest.raises(ValueError, match="same number of <eos>"):  # what transformers does
        model(**tokenizer(texts, padding=True, return_tensors="pt"))


@pytest.mark.parametrize("architecture", mostly_slow(REFUSED, ["canine"]))
def test_an_architecture_that_cannot_embed_short_texts_is_refused(architecture):
    live = make_model(architecture), make_tokenizer(architecture)
    with pytest.raises(ValueError, match=type(live[0]).__name__):
        TransformerEncoder(live, pooling="mean").transform(TEXTS)


@pytest.mark.parametrize("architecture", ["convbert", "bert"])
def test_rounding_in_half_precision_is_no_influence_of_padding(architecture, mixed):
    live = make_model(architecture).to(torch.bfloat16), make_tokenizer(architecture)
    TransformerEncoder(live, pooling="mean").transform(TEXTS)
    assert any(mixed) is (architecture not in LEAKING)


@pytest.mark.parametrize(
    ("architecture", "pooling"),
    [("bert", "mean"), ("xlnet", "cls"), ("xlnet", "max"), ("xlnet", [("cls", 1), ("mean", -1)])],
)
def test_no_padding_on_the_left_reaches_a_pooling_or_shifts_positions(architecture, pooling, mixed):
    model, tokenizer = make_model(architecture), make_tokenizer(architecture)
    tokenizer.padding_side = "left"
    TransformerEncoder((model, tokenizer), pooling=pooling).transform(TEXTS)
    assert any(mixed)


def test_a_model_is_probed_once_whatever_uses_it(tmp_path, spy):
    folder, probes = save_model(tmp_path, "convbert"), spy(Opened, "_padding_changes_vectors")
    encoder = TransformerEncoder(folder, pooling="mean")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(encoder.transform, [TEXTS[:3]] * 4))
    layer_report(encoder, TEXTS)
    TransformerEncoder(folder, pooling="mean", batch_tokens=8, max_length=9).transform(TEXTS)
    assert len(probes) == 1
    TransformerEncoder(folder, pooling="head_input").transform(TEXTS)
    assert len(probes) == 2
