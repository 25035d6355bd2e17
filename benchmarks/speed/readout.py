"""Readout: the encoding of its columns against that of the head input, and its fit."""

from collections.abc import Iterator
from functools import partial

from benchmarks._data import shared_folder
from benchmarks.speed._harness import Result, compare
from isoadapt import TeacherReadout, TransformerEncoder
from isoadapt.datasets import load_table, minilm_folder


def run(quick: bool) -> Iterator[Result]:
    """Compare one pass for all columns with one for the head input, then the fit with a pass."""
    checkpoint = shared_folder() / "models" / "cola-minilm"
    table = shared_folder() / "data" / "cola" / "train.tsv"
    texts = list(dict.fromkeys(load_table(table)[0]))[: 100 if quick else 2000]
    encoder = TransformerEncoder(checkpoint, pooling="readout", device="cpu")
    head_input = TransformerEncoder(checkpoint, pooling="head_input", device="cpu")
    columns = encoder.transform(texts)
    teacher = TransformerEncoder(minilm_folder(), device="cpu").transform(texts)
    fitted = columns[:, :768] if quick else columns  # the head input and one layer
    repeats, n = 1 if quick else 3, len(texts)
    encode = partial(encoder.transform, texts)
    yield compare(
        "encoding with pooling='readout', against pooling='head_input'",
        encode,
        partial(head_input.transform, texts),
        repeats=repeats,
        n=n,
        d=columns.shape[1],
    )
    yield compare(
        "TeacherReadout, whole fit, against encoding its texts",
        lambda: TeacherReadout().fit(fitted, teacher),
        encode,
        repeats=repeats,
        n=n,
        d=fitted.shape[1],
    )
