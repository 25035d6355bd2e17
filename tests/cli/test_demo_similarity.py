"""The end of the demo: its figures, and whether its sentences follow from them."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.preprocessing import normalize

from isoadapt import (
    AdaptedEncoder,
    LogitPreservingWhitening,
    TeacherReadout,
    TransformerEncoder,
    load_checkpoint,
)
from isoadapt.cli._demo import Similarity, report, similarity
from isoadapt.datasets import load_similarity_pairs
from isoadapt.metrics import retrieval_report, similarity_correlation
from tests.tiny_models import save_model

SENTENCES = load_similarity_pairs().left[:40]
RAW, ADAPTED = "classifier's vectors", "adapted by LogitPreservingWhitening"
TAUGHT = "TeacherReadout, taught by the encoder before fine-tuning"
BEFORE = "encoder before fine-tuning"
OTHERS = load_similarity_pairs().right[:30]


def evaluate(texts, others, folder, before=None):
    encoder, head = load_checkpoint(folder)
    return similarity(
        encoder, head, texts, encoder.transform(texts), encoder.transform(others), before
    )


def expected_correlation(encoder, move):
    left, right, scores = load_similarity_pairs()
    # One pass, as in the demo: in other batches the rounding differs, which changes the ranks of
    # cosines that are almost equal in a random model.
    vectors = move(encoder.transform(left + right))
    return similarity_correlation(vectors[: len(left)], vectors[len(left) :], scores)


def test_the_figures_are_those_of_the_public_functions(checkpoint):
    found = evaluate(SENTENCES, OTHERS, checkpoint, before=checkpoint).correlations
    encoder, head = load_checkpoint(checkpoint)
    train = encoder.transform(SENTENCES)
    adapter = LogitPreservingWhitening(head).fit(train)
    before = TransformerEncoder(checkpoint)
    taught = AdaptedEncoder(checkpoint, TeacherReadout(), teacher=checkpoint).fit(SENTENCES)
    expected = {
        RAW: expected_correlation(encoder, lambda X: X),
        "classifier's vectors, centred": expected_correlation(
            encoder, lambda X: X - train.mean(axis=0)
        ),
        ADAPTED: expected_correlation(encoder, adapter.transform),
        TAUGHT: expected_correlation(taught, lambda X: X),
        BEFORE: expected_correlation(before, lambda X: X),
    }
    assert found == pytest.approx(expected, abs=1e-6)


def test_the_hits_are_those_of_the_public_retrieval(checkpoint):
    left, right, scores = load_similarity_pairs()
    hits = evaluate(SENTENCES, OTHERS, checkpoint, before=checkpoint).hits
    assert list(hits) == [RAW, ADAPTED, TAUGHT]
    vectors = load_checkpoint(checkpoint)[0].transform(left + right).astype(np.float64)
    first, second = np.split(vectors, 2)
    asked = np.flatnonzero(scores >= 4)
    found = hits[RAW]
    recall = retrieval_report(first[asked], second, asked, k=1).recall
    assert found["first"] / found["of"] == pytest.approx(recall)
    row = normalize(first)[left.index("He sold his car to pay for the operation.")]
    cosines = normalize(second) @ row
    assert [cosine for cosine, _ in found["nearest"]] == pytest.approx(np.sort(cosines)[:-6:-1])
    for cosine, sentence in found["nearest"]:
        assert cosines[right.index(sentence)] == pytest.approx(cosine)


def test_a_classifier_of_pairs_is_fitted_on_single_texts(checkpoint):
    pairs = list(zip(SENTENCES[::2], SENTENCES[1::2], strict=True))
    others = list(zip(OTHERS[::2], OTHERS[1::2], strict=True))
    found, singles = evaluate(pairs, others, checkpoint), evaluate(SENTENCES, OTHERS, checkpoint)
    assert found.correlations == pytest.approx(singles.correlations, abs=1e-5)
    assert found.predictions == "It changed 0 of 15 predictions on the other texts."
    assert "embedded as a single text" in report(found).replace("\n", " ")
    assert "embedded as a single text" not in report(singles).replace("\n", " ")


def test_a_regressor_keeps_its_values(tmp_path):
    folder = save_model(tmp_path / "checkpoint", num_labels=1)
    sentence = evaluate(SENTENCES, OTHERS, folder).predictions
    value = float(sentence.removeprefix("It changed a predicted value by at most ").rstrip("."))
    assert value < 1e-5


@pytest.mark.parametrize(
    ("adapted", "noise", "before", "expected"),
    [
        (0.7, 0.1, 0.8, ["raises the correlation beyond noise", "is better at similarity"]),
        (0.7, 0.5, 0.6, ["changes the correlation within noise", "is not better here"]),
        (0.1, 0.1, 0.8, ["lowers the correlation beyond noise", "is better at similarity"]),
        (0.7, 0.1, None, ["raises the correlation", "usually better still"]),
    ],
)
def test_the_sentences_follow_from_the_figures(adapted, noise, before, expected):
    correlations = {RAW: 0.3, ADAPTED: adapted}
    if before is not None:
        correlations[BEFORE] = before
    text = report(Similarity(correlations, {}, adapted - 0.3, noise, "Nothing changed.", False))
    assert all(part in text.replace("\n", " ") for part in expected)
    assert f"{ADAPTED}  {adapted:8.4f}" in text


def test_the_noise_is_two_standard_errors_of_the_gain(checkpoint):
    result = evaluate(SENTENCES, OTHERS, checkpoint)
    assert result.gain == result.correlations[ADAPTED] - result.correlations[RAW]
    encoder, head = load_checkpoint(checkpoint)
    adapter = LogitPreservingWhitening(head).fit(encoder.transform(SENTENCES))
    left, right, scores = load_similarity_pairs()
    left, right = encoder.transform(left), encoder.transform(right)
    cosines = [
        np.einsum("ij,ij->i", normalize(first), normalize(second))
        for first, second in ((left, right), (adapter.transform(left), adapter.transform(right)))
    ]
    rng = np.random.default_rng(1)
    gains = []
    for _ in range(1000):
        i = rng.integers(len(scores), size=len(scores))
        raw, adapted = (spearmanr(values[i], scores[i]).statistic for values in cosines)
        gains.append(adapted - raw)
    assert result.noise == pytest.approx(2 * np.std(gains), rel=0.2)
