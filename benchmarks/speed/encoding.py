"""TransformerEncoder against SentenceTransformer.encode, same model and texts."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from sentence_transformers import SentenceTransformer

from benchmarks._data import distinct_texts
from benchmarks.speed._harness import Comparison, compare
from isoadapt.datasets import minilm_folder
from isoadapt.encoders import TransformerEncoder

VOCABULARY = """
time year people way day man thing woman life child world school state family student
group country problem hand part place case week company system program question work government
number night point home water room mother area money story fact month lot right study book eye
job word business issue side kind head house service friend father power hour game line
unquestionably photosynthesis neighbourhood interdisciplinary counterintuitively of and the a
"""


def run(quick: bool) -> Iterator[Comparison]:
    """Compare on every workload; `quick` uses fewer texts and repeats."""
    reference = SentenceTransformer(str(minilm_folder()), device="cpu")
    for name, texts, target in _workloads(16 if quick else 400):
        exact = reference.encode(texts)
        encoder = TransformerEncoder(minilm_folder(), device="cpu")
        cosines = (encoder.transform(texts) * exact).sum(axis=1)
        np.testing.assert_allclose(cosines.mean(), 1, atol=1e-6)
        yield compare(
            f"{name}: torch, against sentence-transformers",
            partial(encoder.transform, texts),
            partial(reference.encode, texts),
            repeats=1 if quick else 3,
            warm_up=False,  # both have embedded these texts
            target=target,
            rows=exact,
        )


def _workloads(n: int) -> Iterator[tuple[str, list[str], float]]:
    """Yield the name, the texts and the target of n long or 4n short distinct texts."""
    rng, words = np.random.default_rng(0), VOCABULARY.split()
    lengths = rng.permutation(np.geomspace(3, 250, n).astype(int))
    yield "mixed, 3 to 250 words", [" ".join(rng.choice(words, k)) for k in lengths], 1.25
    short = [" ".join(rng.choice(words, k)) for k in rng.integers(4, 14, 4 * n)]
    yield "short, 4 to 13 words", short, 1.1
    for name, task, split, size, target in (
        ("WikiText-2 sentences", "wikitext2", "sentences", n, 1.25),
        ("CoLA sentences", "cola", "train", 4 * n, 1.1),
    ):
        yield name, distinct_texts(task, split)[:size], target
