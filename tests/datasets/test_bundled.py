"""What comes with the package: corpus and grammar, pairs, definitions and a small model."""

import hashlib
import re
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from isoadapt.datasets import (
    _bundled,
    load_general_sentences,
    load_similarity_pairs,
    make_acceptability,
    minilm_folder,
)
from tools import general_sentences
from tools.acceptability import corpus as grammar


@pytest.fixture(scope="module")
def corpus():
    return make_acceptability()


def splits(corpus):
    yield corpus.train_texts, corpus.train_labels, corpus.train_phenomena
    yield corpus.dev_texts, corpus.dev_labels, corpus.dev_phenomena


class TestAcceptability:
    def test_rows_are_minimal_pairs_of_sentences_that_occur_once(self, corpus):
        for texts, labels, phenomena in splits(corpus):
            assert labels.dtype == np.int64
            assert labels.tolist() == [1, 0] * (len(texts) // 2)
            assert phenomena[0::2] == phenomena[1::2]
            for good, bad in zip(texts[0::2], texts[1::2], strict=True):
                common, other = Counter(good.lower().split()), Counter(bad.lower().split())
                assert (common - other).total() <= 4, (good, bad)
                assert (other - common).total() <= 4, (good, bad)
                assert not re.search(r"\b(\w+) \1\b", good.lower().replace("that that", "")), good
        texts = corpus.train_texts + corpus.dev_texts
        assert len(set(texts)) == len(texts) == 4396
        for text in texts:
            assert re.fullmatch(r"[A-Z][A-Za-z' ,]*[.?]", text), text
            assert not re.search(r"  | ,|\ba [aeio]|\ban [^aeio]", text.lower()), text

    def test_the_seed_decides_the_order(self, corpus):
        for seed in (0, 2**32):
            first, second = (make_acceptability(200, 60, random_state=seed) for _ in range(2))
            assert (first.train_texts, first.dev_texts) == (second.train_texts, second.dev_texts)
            assert (len(first.train_texts), len(first.dev_texts)) == (200, 60)
            assert (first.train_texts == corpus.train_texts[:200]) == (seed == 0)
            assert set(first.train_texts) <= set(corpus.train_texts)
        assert make_acceptability(200, 60, random_state=None).dev_texts != first.dev_texts

    def test_the_data_file_is_what_the_grammar_draws(self, corpus):
        drawn = grammar.draw_corpus(3200, 1196, seed=0)
        assert grammar.packed(drawn) == grammar.DATA_FILE.read_text("utf-8")
        for stored, expected in zip(splits(corpus), splits(drawn), strict=True):
            assert [*map(list, stored)] == [*map(list, expected)]

    @pytest.mark.parametrize(
        "options", [{"n_train": 3}, {"n_dev": 0}, {"n_dev": 1198}, {"n_dev": "a"}]
    )
    def test_sizes_and_seeds_that_cannot_be(self, options):
        with pytest.raises((ValueError, TypeError), match=next(iter(options))):
            make_acceptability(**options)


def test_grades_of_the_pairs_are_balanced_and_alternate():
    left, right, scores = load_similarity_pairs()
    assert (len({*left, *right}), scores.dtype) == (204, np.float64)
    assert (np.sort(scores.reshape(17, 6), axis=1) == np.arange(6)).all()


class TestGeneralSentences:
    @pytest.mark.slow
    def test_the_data_file_is_what_the_program_draws(self, shared):
        texts = general_sentences.shared_texts(shared / "data")
        assert load_general_sentences() == general_sentences.draw_sentences(*texts)

    def test_definitions_of_evaluated_texts_or_of_unusual_form_are_not_drawn(self):
        kept = ["the act of lending money", " ".join(["long"] * 30)]
        left = ["a tame cat that purrs", "café where tea is served", "a short text", "x " * 31]
        pool = [*kept, *left, "The act of lending (money)"]
        drawn = general_sentences.draw_sentences(pool, ["He saw a tame cat, that purrs.", "a"])
        assert {re.sub(r"[()]", "", text).lower() for text in drawn} == {*kept}
        assert len(drawn) == 2

    def test_the_first_are_given_and_other_numbers_are_refused(self):
        assert load_general_sentences(np.int64(20)) == load_general_sentences()[:20]
        for n in (0, 3001, 2.5, "all", None):
            with pytest.raises(ValueError, match=rf"n={n!r} must .* from 1 to 3000"):
                load_general_sentences(n)


def test_only_the_published_weights_of_minilm_are_accepted(monkeypatch, tmp_path):
    weights = tmp_path / "model.safetensors"
    package = SimpleNamespace(MODEL_DIR=tmp_path)  # stands for the real one
    monkeypatch.setitem(sys.modules, _bundled._PACKAGE, package)
    with pytest.raises(FileNotFoundError, match="safetensors"):
        minilm_folder()
    weights.write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    with pytest.raises(ValueError, match=digest):
        minilm_folder()
    monkeypatch.setattr(_bundled, "_SHA256", digest)
    assert minilm_folder() == weights.parent
