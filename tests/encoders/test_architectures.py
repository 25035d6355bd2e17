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
QUICK = [*LEAKING, "bert", "deberta-v2", "xlnet", "gpt2", "bart", "t5", "llama", "bloom", "xlm"]
pytestmark = pytest.mark.filterwarnings("ignore:.*different texts are fewer")


@pytest.fixture
def probes(monkeypatch):
    """The models that were probed, one entry for each probe."""
    seen, probe = [], _batching._padding_changes_vectors
    noted = lambda *args: seen.append(args[0].model) or probe(*args)  # noqa: E731
    monkeypatch.setattr(_batching, "_padding_changes_vectors", noted)
    return seen


@pytest.fixture
def mixed(monkeypatch):
    """Whether texts of different lengths were in one batch, one entry for each batch."""
    seen, embed = [], _transformer.embed_batch

    def spy(*args):
        seen.append(len(set(args[3]["attention_mask"].sum(1).tolist())) > 1)
        return embed(*args)

    monkeypatch.setattr(_transformer, "embed_batch", spy)
    return seen


def embed_one_by_one(encoder, texts=TEXTS):
    """Embed each text in a batch of its own."""
    return np.concatenate([encoder.transform([text]) for text in texts])


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ALL],
)
def test_a_text_has_the_same_vector_alone_and_in_a_batch(architecture, mixed):
    live = make_model(architecture), make_tokenizer(architecture)
    for pooling in ("head_input", "mean"):
        encoder = TransformerEncoder(live, pooling=pooling, max_length=60)
        mixed.clear()
        together = encoder.transform(TEXTS)
        assert pooling == "head_input" or any(mixed) is (architecture not in LEAKING)
        expected = embed_one_by_one(encoder)
        assert np.ptp(expected, axis=0).max() > 0.01
        np.testing.assert_allclose(together, expected, atol=1e-4)


@pytest.mark.parametrize("architecture", REFUSED)
def test_an_architecture_that_cannot_embed_short_texts_is_refused(architecture):
    live = make_model(architecture), make_tokenizer(architecture)
    with pytest.raises(ValueError, match=type(live[0]).__name__):
        TransformerEncoder(live, pooling="mean").transform(TEXTS)


@pytest.mark.parametrize("architecture", ["convbert", "mobilebert", "bert", "llama", "t5"])
def test_rounding_in_half_precision_is_no_influence_of_padding(architecture, mixed):
    live = make_model(architecture).to(torch.bfloat16), make_tokenizer(architecture)
    TransformerEncoder(live, pooling="mean").transform(TEXTS)
    assert any(mixed) is (architecture not in LEAKING)


def test_padding_on_the_left_does_not_shift_the_positions(live, mixed):
    live[1].padding_side = "left"
    TransformerEncoder(live, pooling="mean").transform(TEXTS)
    assert any(mixed)


def test_a_model_is_probed_once_whatever_uses_it(tmp_path, probes):
    folder = save_model(tmp_path, "convbert")
    encoder = TransformerEncoder(folder, pooling="mean")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(encoder.transform, [TEXTS[:3]] * 4))
    layer_report(encoder, TEXTS)
    TransformerEncoder(folder, pooling="cls", layer=0, batch_tokens=8).transform(TEXTS)
    assert len(probes) == 1
    TransformerEncoder(folder, pooling="head_input").transform(TEXTS)
    assert len(probes) == 2


def test_a_live_model_is_probed_once(probes):
    live = make_model("convbert"), make_tokenizer("roberta")
    encoder = TransformerEncoder(live, pooling="mean")
    np.testing.assert_allclose(encoder.transform(TEXTS), embed_one_by_one(encoder), atol=1e-5)
    assert len(probes) == 1
    live[1].padding_side = "left"
    np.testing.assert_allclose(encoder.transform(TEXTS), embed_one_by_one(encoder), atol=1e-5)


def test_cache_and_layer_report_use_the_tokens_of_texts_alone(tmp_path):
    folder = save_model(tmp_path / "model", "fnet")
    cache = EmbeddingCache(tmp_path / "cache")
    TransformerEncoder(folder, cache=cache).transform(TEXTS)
    cached = embed_one_by_one(TransformerEncoder(folder, cache=cache))
    expected = embed_one_by_one(TransformerEncoder(folder))
    np.testing.assert_allclose(cached, expected, atol=1e-5)
    assert cache.stats().misses == len(set(TEXTS))
    whole, single = (
        layer_report(TransformerEncoder(folder, batch_tokens=n), TEXTS).to_frame()
        for n in (2048, 1)
    )
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
