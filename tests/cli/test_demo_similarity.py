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
TAUGHT, BEFORE = "repaired by TeacherReadout", "encoder before fine-tuning"


def vectors_of(texts, folder, **options):
    encoder, head = load_checkpoint(folder)
    options = {"before": None, "every": False} | options
    return repair(encoder, head, texts, encoder.transform(texts), **options)[1]


def test_the_vectors_are_those_of_the_public_estimators(checkpoint):
    found = vectors_of(LEFT[:40], checkpoint, before=checkpoint, every=True)
    expected = {
        RAW: load_checkpoint(checkpoint)[0],
        ADAPTED: AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(LEFT[:40]),
        TAUGHT: AdaptedEncoder(checkpoint, TeacherReadout(), checkpoint).fit(LEFT[:40]),
        BEFORE: TransformerEncoder(checkpoint),
    }
    assert list(found) == list(expected)
    for name, model in expected.items():
        for side, texts in zip(found[name], (LEFT, RIGHT), strict=True):
            assert side == pytest.approx(model.transform(texts), abs=1e-4)


def test_the_figures_are_those_of_the_public_functions():
    first, second = np.random.default_rng(0).normal(1, 1, (2, len(LEFT), 8))
    found = similarity((first, second))
    asked = np.flatnonzero(SCORES >= 4)
    recall = retrieval_report(first[asked], second, asked, k=1).recall
    assert found.correlation == similarity_correlation(first, second, SCORES)
    assert found.first / found.asked == pytest.approx(recall)
    query = normalize(first)[LEFT.index("He sold his car to pay for the operation.")]
    cosines = normalize(second) @ query
    assert [cosine for cosine, _ in found.nearest] == pytest.approx(np.sort(cosines)[:-6:-1])
    for cosine, sentence in found.nearest:
        assert cosines[RIGHT.index(sentence)] == pytest.approx(cosine)


def test_a_classifier_of_pairs_is_repaired_on_single_texts(checkpoint):
    pairs = list(zip(LEFT[:40:2], LEFT[1:40:2], strict=True))
    found, singles = vectors_of(pairs, checkpoint), vectors_of(LEFT[:40], checkpoint)
    assert found[ADAPTED][0] == pytest.approx(singles[ADAPTED][0], abs=1e-4)
    told = [told_of(0.3, 0.7, of_pairs=of_pairs) for of_pairs in (True, False)]
    assert ["embedded as a single text" in text for text in told] == [True, False]


def told_of(raw, adapted, before=None, ev1=0.5, of_pairs=False):
    row = {"use": "classify", "metric": "accuracy", "score": 0.8, "ev1": ev1, "fit_seconds": 0.1}
    row |= {"n_predictions": 90, "changed_predictions": 0}
    rows = [row | {"adapter": name} for name in ("no adapter", "LogitPreservingWhitening")]
    values = {RAW: raw, ADAPTED: adapted} | ({} if before is None else {BEFORE: before})
    found = {name: Similarity(value, 7, 34, [(0.5, "A.")]) for name, value in values.items()}
    return story(Comparison(rows, "", {}, []), found, "m", of_pairs).replace("\n", " ")


@pytest.mark.parametrize(
    ("before", "ev1", "expected", "other"),
    [
        (0.8, 0.95, ["is better still", "nearly on a line"], "not better"),
        (0.6, 0.5, ["is not better here"], "nearly on a line"),
        (None, 0.5, ["usually better still"], "nearly on a line"),
    ],
)
def test_the_sentences_follow_from_the_figures(before, ev1, expected, other):
    text = told_of(0.3, 0.7, before, ev1)
    assert all(part in text for part in [*expected, "0.300", "0.700", "7 of 34", f"{ev1:.0%}"])
    assert other not in text


def test_all_is_every_method_and_the_default_those_without_epochs_and_one_other(checkpoint):
    head = load_checkpoint(checkpoint)[1]
    every, few = chosen_adapters(head, True), chosen_adapters(head, False)
    assert {type(each).__name__ for each in every.values()} >= {*METHODS.values()}
    trained = [n for n, each in few.items() if "max_epochs" in each.get_params(deep=False)]
    assert trained == ["IsotropyLayer, minibatch", "IsotropyLayer, exact"]
    assert few["IsotropyLayer, exact"].solver == "exact"
    assert len(few) == len(every) - 5
