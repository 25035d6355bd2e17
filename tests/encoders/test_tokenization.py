"""Tokenisation in bounded memory: the tokens are those of one call for whole texts."""

import numpy as np
import pytest

from isoadapt.encoders import _tokenization as module
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import tokenize
from tests.tiny_models import ARCHITECTURES, TEXTS, WORDS, make_tokenizer


def check(tokenizer, max_length, first, second=None):
    """Compare the tokens with those of one call of the tokenizer."""
    names = ["input_ids", "token_type_ids"]
    settings = {"truncation": True, "max_length": max_length, "return_token_type_ids": True}
    expected = tokenizer(first, second, **settings)
    tokens = tokenize(
        tokenizer,
        Texts(first, second),
        max_length=max_length,
        names=frozenset(names),
        counts_positions=True,
    )
    assert sorted(tokens.order) == list(range(len(first)))
    starts = np.cumsum(tokens.lengths) - tokens.lengths
    for name in names:
        for row, start, length in zip(tokens.order, starts, tokens.lengths, strict=True):
            found = tokens.flat[name][start : start + length].tolist()
            assert found == expected[name][row] or not expected[name][row]


class TestLongTexts:
    """The tokens are those of whole texts, and memory is bounded."""

    RNG = np.random.default_rng(0)
    WHITE = (" ", "  ", "\n", "\t", "\u2003", " \r\n ")
    LONG = (
        " ".join(RNG.choice(WORDS, 1500)),
        "\n\t ".join(RNG.choice(WORDS, 1000)),
        "cat" * 2000,  # without white space
        "cat" * 2000 + " dog" * 900,
        "cat " + "dog" * 2000,
        " " * 6000,
        " " * 6000 + "cat sat on the mat",
        "cat" + " " * 6000 + "dog",
        "the cat " * 3 + " " * 3000 + "dog " * 900,
        "猫が座った。" * 900,
        "de\u0301ja\u0300 vu \ufb01n \U0001f600 " * 300,
        "[SEP] [CLS] cat" * 300,
        "!?.,;:" * 900,
    )

    @pytest.mark.parametrize("architecture", ["bert", "roberta", "xlnet", "gpt2"])
    @pytest.mark.parametrize("max_length", [1, 3, 16, 60])
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_tokens(self, monkeypatch, architecture, max_length, side):
        tokenizer = make_tokenizer(architecture)
        tokenizer.truncation_side = side
        short = [white.join(TEXTS) for white in self.WHITE]
        texts = [*self.LONG, *TEXTS, *short]
        pairs = [*TEXTS, *short], [*short, *TEXTS]
        check(tokenizer, max_length, texts)
        if max_length > 4:
            check(tokenizer, max_length, *pairs)
        monkeypatch.setattr(module, "_CHARACTERS", 3000)
        check(tokenizer, max_length, texts)

    def test_most_of_a_long_text_is_never_tokenised(self, monkeypatch):
        tokenizer, seen = make_tokenizer(), []
        call = type(tokenizer)._encode_plus

        def recorded(self, text, *args, **options):
            seen.append(sum(map(len, text)))
            return call(self, text, *args, **options)

        monkeypatch.setattr(type(tokenizer), "_encode_plus", recorded)
        texts = Texts(["cat sat on " * 10_000] * 50 + ["cat" * 1000] * 300)
        names = frozenset({"input_ids"})
        tokenize(tokenizer, texts, max_length=16, names=names, counts_positions=True)
        assert sum(seen) < 1.5e6
        assert max(seen) <= module._CHARACTERS


def random_text(rng, n_words):
    """Words and unknown words, separated by white space of several kinds."""
    words = rng.choice([*WORDS, "catdog", "!?", "猫", "\U0001f600"], n_words)
    return "".join(np.char.add(words, rng.choice(TestLongTexts.WHITE, n_words)))


class TestLongPairs:
    """The longer text is truncated first, and the tokens are those of the whole pair."""

    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    def test_tokens_of_every_architecture(self, architecture):
        rng = np.random.default_rng(0)
        tokenizer = make_tokenizer(architecture)
        texts = [random_text(rng, n) for n in rng.integers(0, 30, size=120)]
        for max_length in (4, 7, 12, 13):
            check(tokenizer, max_length, texts[:60], texts[60:])

    @pytest.mark.parametrize("side", ["left", "right"])
    @pytest.mark.parametrize("architecture", ["bert", "gpt2"])
    def test_tokens_of_random_lengths(self, monkeypatch, architecture, side):
        monkeypatch.setattr(module, "_CHARACTERS", 2000)
        rng = np.random.default_rng(1)
        tokenizer = make_tokenizer(architecture)
        tokenizer.truncation_side = side
        for max_length in (4, 5, 9, 16, 32):
            n_words = rng.choice([0, 1, 2, 3, 5, 6, 7, 8, 11, 15, 16, 17, 40, 250], size=30)
            texts = [random_text(rng, n) for n in n_words]
            same = [random_text(rng, n) for n in n_words[:15]]  # as many words as the first
            check(tokenizer, max_length, [*texts[:15], *texts[:15]], [*texts[15:], *same])

    def test_the_kept_tokens_begin_the_whole_texts(self):
        tokenizer = make_tokenizer()
        rng = np.random.default_rng(2)
        first, second = (
            [random_text(rng, n) for n in rng.integers(1, 400, size=50)] for _ in range(2)
        )
        for max_length in (16, 17):
            (columns,) = module.encoded_parts(tokenizer, Texts(first, second), max_length)
            for i, (ids, types) in enumerate(
                zip(columns["input_ids"], columns["token_type_ids"], strict=True)
            ):
                whole = [
                    tokenizer(text[i], add_special_tokens=False)["input_ids"]
                    for text in (first, second)
                ]
                stop = types.index(1) if 1 in types else len(types)
                kept = ids[1 : stop - 1], ids[stop:-1]
                assert all(whole[j][: len(kept[j])] == kept[j] for j in range(2))
                sizes, room = [len(tokens) for tokens in whole], max_length - 3
                assert len(kept[0]) + len(kept[1]) == min(sum(sizes), room)
                for j in range(2):  # a text is truncated only if it is as long as the other
                    assert len(kept[j]) == sizes[j] or len(kept[j]) >= min(sizes[1 - j], room // 2)

    def test_a_pair_longer_than_a_call_is_tokenised_by_itself(self, monkeypatch):
        monkeypatch.setattr(module, "_CHARACTERS", 300)
        first, second = ["cat " * 200, "a dog"], ["the mat " * 300, "it was"]
        check(make_tokenizer(), 16, first, second)

    def test_a_slow_tokenizer_gets_whole_pairs(self):
        class Slow:
            is_fast, truncation_side = False, "right"

            def __call__(self, first, second, **options):
                return {"input_ids": [[len(a), len(b)] for a, b in zip(first, second, strict=True)]}

        found = list(module.encoded_parts(Slow(), Texts(["ab" * 50], ["c" * 70]), 16))
        assert found == [{"input_ids": [[100, 70]]}]
