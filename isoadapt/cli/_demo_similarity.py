"""The end of ``isoadapt demo``: how well the classifier's vectors rank similar sentences."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoadapt import LinearHead, LogitPreservingWhitening, TransformerEncoder
from isoadapt._utils.tables import aligned_table
from isoadapt.datasets import load_similarity_pairs
from isoadapt.metrics import similarity_correlation

_RAW = "classifier's vectors"
_CENTRED = "classifier's vectors, centred"
_ADAPTED = "adapted by LogitPreservingWhitening"
_BEFORE = "encoder before fine-tuning"
_RESAMPLES = 200

Vectors = tuple[NDArray[Any], NDArray[Any]]  # of the first and of the second sentences


class Similarity(NamedTuple):
    """Correlations with the grades of the sentence pairs, and the effect on predictions."""

    correlations: dict[str, float]
    gain: float  # of the adapter over the raw vectors
    noise: float  # two standard errors of the gain
    predictions: str
    single_texts: bool  # whether a classifier of pairs embedded single sentences


def similarity(
    encoder: TransformerEncoder,
    head: LinearHead,
    texts: Any,
    train: NDArray[Any],
    dev: NDArray[Any],
    before: Path | None,
) -> Similarity:
    """Evaluate embeddings on graded pairs without and with an adapter.

    The adapter is fitted on the training texts, without labels. `train` and `dev` are the
    embeddings of these texts and of others; `before` is the encoder before fine-tuning, if known.
    """
    of_pairs = not isinstance(texts[0], str)
    if of_pairs:
        train = encoder.transform(list(dict.fromkeys(text for pair in texts for text in pair)))
    adapter = LogitPreservingWhitening(head).fit(train)
    raw = _embed(encoder)
    adapted = adapter.transform(raw[0]), adapter.transform(raw[1])
    mean = train.mean(axis=0)
    vectors = {_RAW: raw, _CENTRED: (raw[0] - mean, raw[1] - mean), _ADAPTED: adapted}
    if before is not None:
        vectors[_BEFORE] = _embed(TransformerEncoder(before))
    scores = load_similarity_pairs().scores
    correlations = {name: similarity_correlation(*pair, scores) for name, pair in vectors.items()}
    return Similarity(
        correlations,
        correlations[_ADAPTED] - correlations[_RAW],
        2 * _error_of_gain(raw, adapted, scores),
        _effect_on_predictions(head, dev, adapter.transform(dev)),
        of_pairs,
    )


def report(result: Similarity) -> str:
    """Format the correlations as a table, and say in plain words what they mean."""
    n_pairs = len(load_similarity_pairs().scores)
    rows = [(name, f"{value:8.4f}") for name, value in result.correlations.items()]
    title = f"Similarity: {n_pairs} graded sentence pairs, Spearman correlation of the cosines"
    notes = [f"{_gain(result)} {result.predictions}"]
    if result.single_texts:
        notes.append(
            "The checkpoint classifies pairs: each sentence was embedded as a single text, so "
            "these vectors are not those from which it predicts."
        )
    return "\n".join([f"{title}\n", aligned_table(rows), "", *notes, _advice(result)])


def _embed(encoder: TransformerEncoder) -> Vectors:
    left, right, _ = load_similarity_pairs()
    vectors = encoder.transform(left + right)
    return vectors[: len(left)], vectors[len(left) :]


def _error_of_gain(raw: Vectors, adapted: Vectors, scores: NDArray[Any]) -> float:
    """Return the bootstrap standard error of the adapter's gain, over resampled pairs."""
    rng = np.random.default_rng(0)
    samples = rng.integers(len(scores), size=(_RESAMPLES, len(scores)))
    gains = [
        similarity_correlation(adapted[0][i], adapted[1][i], scores[i])
        - similarity_correlation(raw[0][i], raw[1][i], scores[i])
        for i in samples
    ]
    return float(np.std(gains))


def _effect_on_predictions(head: LinearHead, X: NDArray[Any], Z: NDArray[Any]) -> str:
    if head.classes_ is None:
        change = np.abs(head.predict(Z) - head.predict(X)).max()
        return f"It changed a predicted value by at most {change:.1e}."
    changed = int((head.predict(Z) != head.predict(X)).sum())
    return f"It changed {changed} of {len(X)} predictions on the other texts."


def _gain(result: Similarity) -> str:
    if abs(result.gain) <= result.noise:
        effect = "changes the correlation within noise"
    else:
        effect = f"{'raises' if result.gain > 0 else 'lowers'} the correlation beyond noise"
    return (
        f"The adapter, fitted on the training texts without labels, {effect} "
        f"({result.gain:+.4f} ± {result.noise:.4f})."
    )


def _advice(result: Similarity) -> str:
    before, adapted = result.correlations.get(_BEFORE), result.correlations[_ADAPTED]
    if before is None:
        return (
            "The encoder before fine-tuning is usually better still at similarity: compare with it "
            "if you have it, on pairs of your own."
        )
    comparison = "better" if before > adapted else "not better here"
    return (
        f"The encoder before fine-tuning is {comparison} at similarity, so use it for that if you "
        "have it and can run two models. The adapter is for one model that must do both."
    )
