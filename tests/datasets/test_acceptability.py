"""The corpus of acceptability: what it promises about every sentence, and the grammar behind it."""

import re
from collections import Counter, defaultdict
from dataclasses import fields

import numpy as np
import pytest

from isoadapt.datasets import make_acceptability
from tools.acceptability import corpus as grammar
from tools.acceptability.lexicon import DEV, TRAIN, Noun, Verb


def words(texts):
    return {word for text in texts for word in re.findall(r"[a-z]+", text.lower())}


# Closed classes of English; everything else must occur in one split only.
FUNCTION_WORDS = words(
    [
        "a an any the this that these those every each one two three some several many much few",
        "little all both no most such very too more as than at to of on in for by with near",
        "behind about up down away over back out off before after during because although",
        "without and but or not nobody everybody he she it they him her them himself herself",
        "themselves who which what whom why when where is are was were be been has have had do",
        "does did will can could must should won isn aren wasn weren hasn haven don t ever",
        "never often there seem seems ago from now last next",
    ]
)


@pytest.fixture(scope="module")
def corpus():
    return make_acceptability()


def splits(corpus):
    yield corpus.train_texts, corpus.train_labels, corpus.train_phenomena
    yield corpus.dev_texts, corpus.dev_labels, corpus.dev_phenomena


def test_content_words_of_the_splits_are_disjoint(corpus):
    shared = words(corpus.train_texts) & words(corpus.dev_texts)
    assert shared <= FUNCTION_WORDS, shared - FUNCTION_WORDS


def lexicon_words(entry):
    if isinstance(entry, str):
        return words([entry])
    if isinstance(entry, Noun):
        return {entry.singular, entry.plural}
    if isinstance(entry, Verb):
        return {entry.base, entry.third, entry.past, entry.participle, entry.gerund}
    return set().union(*map(lexicon_words, entry)) if entry else set()


def test_the_two_lexicons_share_no_content_word():
    train, dev = (
        set().union(*(lexicon_words(getattr(lexicon, field.name)) for field in fields(lexicon)))
        for lexicon in (TRAIN, DEV)
    )
    assert train & dev <= FUNCTION_WORDS


def test_rows_are_minimal_pairs(corpus):
    for texts, labels, phenomena in splits(corpus):
        assert labels.dtype == np.int64
        assert labels.tolist() == [1, 0] * (len(texts) // 2)
        assert phenomena[0::2] == phenomena[1::2]
        for good, bad in zip(texts[0::2], texts[1::2], strict=True):
            common, other = Counter(good.lower().split()), Counter(bad.lower().split())
            assert (common - other).total() <= 4, (good, bad)
            assert (other - common).total() <= 4, (good, bad)


def test_no_sentence_occurs_twice(corpus):
    texts = corpus.train_texts + corpus.dev_texts
    assert len(set(texts)) == len(texts) == 4396


def test_phenomena_are_many_and_even(corpus):
    train, dev = Counter(corpus.train_phenomena), Counter(corpus.dev_phenomena)
    assert len(train) >= 12
    assert set(dev) - set(train) == {"dative"}
    assert set(train) < set(dev)
    for counts in (train, dev):
        assert max(counts.values()) - min(counts.values()) <= 2


def test_sentences_are_written_as_sentences(corpus):
    for text in corpus.train_texts + corpus.dev_texts:
        assert re.fullmatch(r"[A-Z][A-Za-z' ,]*[.?]", text), text
        assert "  " not in text
        assert " ," not in text
        assert not re.search(r"\ba [aeio]|\ban [^aeio]", text.lower()), text


def test_acceptable_sentences_repeat_no_word_in_a_row(corpus):
    for texts, _, _ in splits(corpus):
        for text in texts[0::2]:
            assert not re.search(r"\b(\w+) \1\b", text.lower().replace("that that", "")), text


def test_no_sentence_is_both_acceptable_and_not():
    labels = defaultdict(set)
    for seed in range(6):
        drawn = grammar.draw_corpus(2000, 2000, seed)
        for texts, values, _ in splits(drawn):
            for text, value in zip(texts, values.tolist(), strict=True):
                labels[text].add(value)
    assert [text for text, values in labels.items() if len(values) > 1] == []


@pytest.mark.parametrize("seed", [0, 1, 2**32])
def test_the_seed_decides_the_order(corpus, seed):
    first, second = (make_acceptability(200, 60, random_state=seed) for _ in range(2))
    assert first.train_texts == second.train_texts
    assert first.dev_texts == second.dev_texts
    assert (len(first.train_texts), len(first.dev_texts)) == (200, 60)
    assert (first.train_texts == corpus.train_texts[:200]) == (seed == 0)
    assert set(first.train_texts) <= set(corpus.train_texts)
    assert make_acceptability(200, 60, random_state=None).dev_texts != first.dev_texts


def test_the_data_file_is_what_the_grammar_draws(corpus):
    drawn = grammar.draw_corpus(3200, 1196, seed=0)
    assert grammar.packed(drawn) == grammar.DATA_FILE.read_text("utf-8")
    for stored, expected in zip(splits(corpus), splits(drawn), strict=True):
        assert [*map(list, stored)] == [*map(list, expected)]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_train": 3}, ValueError, "n_train must be positive and even.*got 3"),
        ({"n_dev": 0}, ValueError, "n_dev must be positive and even.*got 0"),
        ({"n_dev": 1198}, ValueError, "n_dev must be at most 1196, got 1198"),
        ({"n_dev": 2.0}, TypeError, "n_dev must be an int, got 2.0"),
        ({"random_state": "a"}, TypeError, "random_state must be an int or None, got 'a'"),
    ],
)
def test_sizes_and_seeds_that_cannot_be(options, error, message):
    with pytest.raises(error, match=message):
        make_acceptability(**options)


def test_a_grammar_that_has_nothing_new_to_say_says_so(monkeypatch):
    def rain(grammar):
        return "is it raining?", "it is raining?"

    monkeypatch.setattr(grammar, "_PHENOMENA", (rain,))
    with pytest.raises(ValueError, match=r"4 sentences.*rain is exhausted after 2"):
        grammar.draw_corpus(4, 2, seed=0)
