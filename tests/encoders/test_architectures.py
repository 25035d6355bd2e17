"""Every architecture gives a text the same vector in a batch and alone, or raises an error."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from isoadapt.encoders import (
    EmbeddingCache,
    TransformerEncoder,
    _batching,
    _transformer,
    layer_report,
)
from tests.tiny_models import (
    ARCHITECTURES,
    LEAKING,
    MORE_ARCHITECTURES,
    REFUSED,
    TEXTS,
    make_model,
    make_tokenizer,
    save_model,
)

ALL = [*ARCHITECTURES, *MORE_ARCHITECTURES]
QUICK = [*ARCHITECTURES, *LEAKING, "bart", "t5", "llama", "bloom", "esm", "xlm"]


@pytest.fixture
def probes(monkeypatch):
    """The models that were probed, one entry for each probe."""
    seen, probe = [], _batching._padding_changes_vectors
    noted = lambda *args: seen.append(args[0].model) or probe(*args)  # noqa: E731
    monkeypatch.setattr(_batching, "_padding_changes_vectors", noted)
    return seen


def embed_one_by_one(encoder, texts=TEXTS):
    """Embed each text in a batch of its own."""
    return np.concatenate([encoder.transform([text]) for text in texts])


def test_there_are_forty_architectures():
    assert len(set(ALL)) >= 40
    assert not set(ALL) & set(REFUSED)


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ALL],
)
def test_a_text_has_the_same_vector_alone_and_in_a_batch(architecture):
    live = make_model(architecture), make_tokenizer(architecture)
    for pooling in ("head_input", "mean"):
        encoder = TransformerEncoder(live, pooling=pooling, max_length=60)
        together, expected = encoder.transform(TEXTS), embed_one_by_one(encoder)
        assert np.ptp(expected, axis=0).max() > 0.01
        np.testing.assert_allclose(together, expected, atol=1e-4)


@pytest.mark.parametrize("architecture", REFUSED)
def test_an_architecture_that_cannot_embed_short_texts_is_refused(architecture):
    model = make_model(architecture)
    encoder = TransformerEncoder((model, make_tokenizer(architecture)), pooling="mean")
    with pytest.raises(ValueError, match=rf"^{type(model).__name__} (fails on|has no linear)"):
        encoder.transform(TEXTS)


def mixes_lengths(monkeypatch, encoder):
    """Return whether any batch of the encoder holds texts of different lengths."""
    mixed = []
    embed = _transformer.embed_batch

    def spy(*args):
        mixed.append(len(set(args[3]["attention_mask"].sum(1).tolist())) > 1)
        return embed(*args)

    monkeypatch.setattr(_transformer, "embed_batch", spy)
    encoder.transform(TEXTS)
    return any(mixed)


@pytest.mark.parametrize("architecture", [*LEAKING, "bert", "roberta", "llama", "t5", "jamba"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_models_that_padding_changes_get_batches_of_one_length(
    architecture, dtype, monkeypatch
):
    if (architecture, dtype) == ("fnet", "bfloat16"):
        pytest.skip("torch has no Fourier transform in bfloat16")
    model = make_model(architecture).to(getattr(torch, dtype))
    encoder = TransformerEncoder((model, make_tokenizer(architecture)), pooling="mean")
    assert mixes_lengths(monkeypatch, encoder) is (architecture not in LEAKING)


def test_only_the_head_may_depend_on_padding(monkeypatch):
    """XLNet's classifier reads the last position; its hidden states do not depend on padding."""
    live = make_model("xlnet"), make_tokenizer("roberta")
    assert mixes_lengths(monkeypatch, TransformerEncoder(live, pooling="head_input")) is False
    assert mixes_lengths(monkeypatch, TransformerEncoder(live, pooling="mean")) is True


@pytest.mark.filterwarnings("ignore:.*different texts are fewer")
def test_a_model_is_probed_once_whatever_uses_it(tmp_path, probes):
    folder = save_model(tmp_path, "convbert")
    encoder = TransformerEncoder(folder, pooling="mean")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(encoder.transform, [TEXTS] * 8))
    layer_report(encoder, TEXTS)
    TransformerEncoder(folder, pooling="cls", layer=0, batch_tokens=8).transform(TEXTS)
    assert len(probes) == 1
    TransformerEncoder(folder, pooling="head_input").transform(TEXTS)
    assert len(probes) == 2


def test_a_live_model_is_probed_once(probes):
    live = make_model("convbert"), make_tokenizer("roberta")
    for _ in range(3):
        TransformerEncoder(live, pooling="mean").transform(TEXTS)
    assert len(probes) == 1
    live[1].padding_side = "left"
    np.testing.assert_allclose(
        TransformerEncoder(live, pooling="mean").transform(TEXTS),
        embed_one_by_one(TransformerEncoder(live, pooling="mean")),
        atol=1e-5,
    )


def test_cached_vectors_are_those_of_a_text_alone(tmp_path):
    folder = save_model(tmp_path / "model", "fnet")
    cache = EmbeddingCache(tmp_path / "cache")
    TransformerEncoder(folder, cache=cache).transform(TEXTS)
    expected = embed_one_by_one(TransformerEncoder(folder))
    for text, vector in zip(TEXTS, expected, strict=True):
        got = TransformerEncoder(folder, cache=cache).transform([text])
        np.testing.assert_allclose(got[0], vector, atol=1e-5)
    assert cache.stats().misses == len(set(TEXTS))


@pytest.mark.filterwarnings("ignore:.*different texts are fewer")
def test_layers_are_measured_on_the_tokens_of_texts_alone():
    live = make_model("fnet"), make_tokenizer("roberta")
    whole = layer_report(TransformerEncoder(live), TEXTS).to_frame()
    single = layer_report(TransformerEncoder(live, batch_tokens=1), TEXTS).to_frame()
    np.testing.assert_allclose(
        whole.drop(columns="two_nn"), single.drop(columns="two_nn"), atol=1e-4
    )


def test_long_texts_do_not_depend_on_earlier_short_texts(tmp_path):
    """BigBird switches to full attention permanently at the first short text."""
    encoder = TransformerEncoder(save_model(tmp_path, "big_bird"), pooling="mean")
    long = [max(TEXTS, key=len)]
    first = encoder.transform(long)
    encoder.transform(["cat"])
    np.testing.assert_array_equal(encoder.transform(long), first)
