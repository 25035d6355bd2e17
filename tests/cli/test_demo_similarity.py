"""The story of the demo: its figures, and whether its sentences follow from them."""

import numpy as np
import pytest
from sklearn.preprocessing import normalize

from isoadapt import (
    AdaptedEncoder,
    LogitPreservingWhitening,
    TeacherReadout,
    TransformerEncoder,
    load_checkpoint,
)
from isoadapt.adapters._registry import METHODS
from isoadapt.cli._demo import Similarity, chosen_adapters, repair, similarity, story
from isoadapt.datasets import load_similarity_pairs
from isoadapt.metrics import retrieval_report, similarity_correlation
from isoadapt.model_selection import Comparison

LEFT, RIGHT, SCORES = load_similarity_pairs()
RAW, ADAPTED = "classifier's vectors", "repaired by LogitPreservingWhitening"
BEFORE = "encoder before fine-tuning"


def test_the_vectors_are_those_of_the_public_estimators(checkpoint):
    encoder, head = load_checkpoint(checkpoint)
    texts, every = LEFT[:40], (checkpoint, True)
    expected = {
        RAW: encoder,
        ADAPTED: AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(texts),
        "repaired by TeacherReadout": AdaptedEncoder(checkpoint, TeacherReadout(), checkpoint),
        BEFORE: TransformerEncoder(checkpoint),
    }
    expected["repaired by TeacherReadout"].fit(texts)
    found = repair(encoder, head, texts, encoder.transform(texts), *every)[1]
    assert list(found) == list(expected)
    for name, model in expected.items():
        assert np.vstack(found[name]) == pytest.approx(model.transform(LEFT + RIGHT), abs=1e-4)
    pairs = list(zip(texts[::2], texts[1::2], strict=True))  # a classifier of pairs
    of_pairs = repair(encoder, head, pairs, encoder.transform(pairs), None, False)[1]
    assert list(of_pairs) == [RAW, ADAPTED]
    assert of_pairs[ADAPTED][0] == pytest.approx(found[ADAPTED][0], abs=1e-4)


def test_the_figures_are_those_of_the_public_functions():
    first, second = np.random.default_rng(0).normal(1, 1, (2, len(LEFT), 8))
    found, asked = similarity((first, second)), np.flatnonzero(SCORES >= 4)
    recall = retrieval_report(first[asked], second, asked, k=1).recall
    assert found.correlation == similarity_correlation(first, second, SCORES)
    assert found.first / found.asked == pytest.approx(recall)
    query = normalize(first)[LEFT.index("He sold his car to pay for the operation.")]
    cosines = dict(zip(RIGHT, normalize(second) @ query, strict=True))
    nearest = sorted(cosines, key=cosines.get)[:-6:-1]
    assert [sentence for _, sentence in found.nearest] == nearest
    assert [cosine for cosine, _ in found.nearest] == pytest.approx([*map(cosines.get, nearest)])


@pytest.mark.parametrize(
    ("before", "ev1", "of_pairs", "expected", "other"),
    [
        (0.8, 0.95, False, ["is better still", "nearly on a line"], "as a single text"),
        (0.6, 0.5, False, ["is not better here"], "nearly on a line"),
        (None, 0.5, True, ["usually better still", "as a single text"], "nearly on a line"),
    ],
)
def test_the_sentences_follow_from_the_figures(before, ev1, of_pairs, expected, other):
    row = {"use": "classify", "metric": "accuracy", "score": 0.8, "ev1": ev1, "fit_seconds": 0.1}
    row |= {"n_predictions": 90, "changed_predictions": 3}
    rows = [row | {"adapter": name} for name in ("no adapter", "LogitPreservingWhitening")]
    values = {RAW: 0.3, ADAPTED: 0.7} | ({} if before is None else {BEFORE: before})
    found = {name: Similarity(value, 7, 34, [(0.5, "A.")]) for name, value in values.items()}
    text = story(Comparison(rows, "", {}, []), found, "m", of_pairs).replace("\n", " ")
    for part in (*expected, "0.300", "0.700", "7 of 34", f"{ev1:.0%}", "changes 3 of 90"):
        assert part in text
    assert other not in text


def test_all_is_every_method_and_the_default_those_without_epochs_and_one_other(checkpoint):
    head = load_checkpoint(checkpoint)[1]
    every, few = (chosen_adapters(head, each) for each in (True, False))
    assert {type(each).__name__ for each in every.values()} == {*METHODS.values()}
    slow = {name for name, each in every.items() if "max_epochs" in each.get_params(deep=False)}
    assert every.keys() - few.keys() == slow - {"IsotropyLayer, minibatch", "IsotropyLayer, exact"}
