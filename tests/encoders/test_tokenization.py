"""Tokenisation in bounded memory: the tokens are those of one call for whole texts."""

from types import SimpleNamespace

import numpy as np
import pytest

from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import model_inputs
from tests.small_blocks import small_blocks
from tests.tiny_models import TEXTS, WORDS, make_tokenizer

RNG = np.random.default_rng(0)
WHITE = (" ", "  ", "\n", "\t", "\u2003", " \r\n ")
LONG = (
    " ".join(RNG.choice(WORDS, 1500)),
    "\n\t ".join(RNG.choice(WORDS, 1000)),
    "cat" * 2000,  # without white space
    "cat" * 2000 + " dog" * 900,
    "cat " + "dog" * 2000,
    " " * 6000 + "cat sat on the mat",
    "cat" + " " * 6000 + "dog",
    "the cat " * 3 + " " * 3000 + "dog " * 900,
    "猫が座った。" * 900,
    "de\u0301ja\u0300 \ufb01n \U0001f600 [SEP] cat" * 300,
)


def random_text(rng, n_words):
    """Words and unknown words, separated by white space of several kinds."""
    words = rng.choice([*WORDS, "catdog", "!?", "猫", "\U0001f600"], n_words)
    return "".join(np.char.add(words, rng.choice(WHITE, n_words)))


def read(tokenizer, texts, max_length):
    """Tokenise texts for a model with the inputs of BERT."""
    inputs = frozenset({"input_ids", "token_type_ids"})
    backbone = SimpleNamespace(tokenizer=tokenizer, inputs=inputs, limit=64, end_token=None)
    return model_inputs(backbone, texts, max_length)


def check(tokenizer, max_length, first, second=None):
    """Compare the tokens with those of one call of the tokenizer."""
    names = ["input_ids", "token_type_ids"]
    settings = {"truncation": True, "max_length": max_length, "return_token_type_ids": True}
    expected = tokenizer(first, second, **settings)
    tokens = read(tokenizer, Texts(first, second), max_length)
    assert sorted(tokens.order) == list(range(len(first)))
    starts = np.cumsum(tokens.lengths) - tokens.lengths
    for name in names:
        for row, start, length in zip(tokens.order, starts, tokens.lengths, strict=True):
            found = tokens.flat[name][start : start + length].tolist()
            assert found == expected[name][row] or not expected[name][row]


@pytest.mark.parametrize(
    ("architecture", "side"), [("bert", "right"), ("xlnet", "left"), ("gpt2", "right")]
)
@pytest.mark.parametrize("max_length", [3, 16])
def test_tokens_of_long_texts(architecture, max_length, side):
    tokenizer = make_tokenizer(architecture)
    tokenizer.truncation_side = side
    short = [white.join(TEXTS) for white in WHITE]
    check(tokenizer, max_length, [*LONG, *TEXTS, *short])
    if max_length > 4:
        check(tokenizer, max_length, [*TEXTS, *short], [*short, *TEXTS])
    with small_blocks(calls=3):
        check(tokenizer, max_length, [*LONG, *TEXTS, *short])


def test_most_of_a_long_text_is_never_tokenised(monkeypatch):
    tokenizer, seen = make_tokenizer(), []
    call = type(tokenizer)._encode_plus

    def recorded(self, text, *args, **options):
        seen.append(sum(map(len, text)))
        return call(self, text, *args, **options)

    monkeypatch.setattr(type(tokenizer), "_encode_plus", recorded)
    texts = Texts(["cat sat on " * 10_000] * 50 + ["cat" * 1000] * 300)
    read(tokenizer, texts, 16)
    assert sum(seen) < 1.5e6
    assert max(seen) < 2e5


@pytest.mark.parametrize(
    ("architecture", "side"),
    [("bert", "right"), ("bert", "left"), ("xlnet", "left"), ("gpt2", "right")],
)
@small_blocks(calls=7)
def test_the_longer_text_of_a_pair_is_truncated_first(architecture, side):
    rng, tokenizer = np.random.default_rng(1), make_tokenizer(architecture)
    tokenizer.truncation_side = side
    n_words = rng.choice([0, 1, 2, 3, 5, 6, 7, 8, 11, 15, 16, 17, 40], size=60)
    texts = [random_text(rng, n) for n in n_words]
    same = [random_text(rng, n) for n in n_words[:20]]  # as many words as the first
    for max_length in (4, 7, 12, 13):
        check(tokenizer, max_length, [*texts[:30], *texts[:20]], [*texts[30:], *same])


def test_a_token_of_two_words_is_not_cut():
    """Of a long text, 672 characters up to a white space are read first."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["cat dog"])
    check(tokenizer, 5, ["cat" + 300 * " " + "cat" + 361 * " " + "cat dog " * 500])
