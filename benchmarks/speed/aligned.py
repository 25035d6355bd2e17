"""Vectors of one pass and a layer of the base model, against passes of one and of two models."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks._data import distinct_texts, shared_folder
from benchmarks.speed._harness import Comparison, apart, compare, measured
from isoadapt import AdaptedEncoder, TeacherReadout, TransformerEncoder
from isoadapt.datasets import load_general_sentences, minilm_folder

CLASSIFIER = shared_folder() / "models" / "cola-minilm"
LIMIT = 300  # MB of resident memory, beside the loaded models


def run(quick: bool) -> Iterator[Comparison]:
    """Compare encoding, and the fit with 3,000 general sentences, on sentences of CoLA."""
    texts = distinct_texts("cola", "train")[: 32 if quick else 3000]
    general = load_general_sentences(len(texts))
    classifier, base = TransformerEncoder(CLASSIFIER), TransformerEncoder(minilm_folder())
    model = AdaptedEncoder(CLASSIFIER, TeacherReadout(), base, general=general)
    options = {"repeats": 1 if quick else 3, "n": len(texts), "d": 384}

    def both(rows: list[str]) -> None:
        classifier.transform(rows)
        base.transform(rows)

    peak = round(apart(_peak, texts, general, models=True))
    yield compare(
        f"fit to own and as many general sentences, peak {peak} MB beside the models (limit "
        f"{LIMIT}), against encoding these by both models",
        partial(model.fit, texts),
        partial(both, [*texts, *general]),
        target=1 / 3,
        peak_mb=peak,
        limit_mb=LIMIT,
        **options,
    )
    np.testing.assert_array_equal(
        model.decision_function(texts),
        model.head_.decision_function(classifier.transform(texts)),
    )
    for name, reference, target in (
        ("the classifier's pass", classifier.transform, 1 / 1.3),
        ("the passes of both models", both, 1 / 0.65),
    ):
        yield compare(
            f"vectors and labels of one pass and a layer of the base, against {name}",
            partial(model.transform_predict, texts),
            partial(reference, texts),
            target=target,
            **options,
        )


def _peak(texts: list[str], general: list[str]) -> float:
    """Return MB of resident memory that a fit adds to that of the loaded models."""
    encoders = (
        TransformerEncoder(CLASSIFIER, pooling="readout"),
        TransformerEncoder(minilm_folder()),
    )
    for encoder in encoders:
        encoder.transform(general[:100])
    model = AdaptedEncoder(encoders[0], TeacherReadout(), encoders[1], general=general)
    return measured(partial(model.fit, texts))["peak_mb"]
