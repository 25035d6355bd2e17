"""EmbeddingCache: reading against encoding, and the time that it adds to encoding.

The benchmark also checks that each text is encoded once, and raises otherwise.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._data import distinct_texts, shared_folder
from benchmarks.speed._harness import Comparison, compare, new_process, seconds_of, single_thread
from isoadapt import EmbeddingCache, TransformerEncoder
from isoadapt.encoders._identity import row_keys
from isoadapt.encoders._texts import as_texts


def run(quick: bool) -> list[Comparison]:
    """Measure with the CoLA checkpoint and its sentences."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        return [
            _reading(place / "read", *((3_000, 100) if quick else (100_000, 4000))),
            _overhead(place / "cold", 100 if quick else 4000, 1 if quick else 3),
            *_two_processes(place / "processes", *((50, 1) if quick else (4000, 2))),
        ]


def encoder(cache: Any = None) -> TransformerEncoder:
    """Return the encoder that all measurements use."""
    return TransformerEncoder(shared_folder() / "models" / "cola-minilm", cache=cache)


def _reading(folder: Path, n_rows: int, n: int) -> Comparison:
    """Compare reading rows through the encoder with encoding n sentences."""
    sentences = distinct_texts("cola", "train")
    texts = [f"{i} {sentences[i % len(sentences)]}" for i in range(n_rows)]
    vectors = np.random.default_rng(0).normal(size=(n_rows, 384)).astype(np.float32)
    cached, plain, sample = encoder(EmbeddingCache(folder)), encoder(), sentences[:n]
    keys = row_keys(cached.identity(), as_texts(texts))
    for part in np.array_split(np.arange(n_rows), 50):
        cached.cache._put("benchmark", {keys[i]: vectors[i] for i in part})
    np.testing.assert_array_equal(cached.transform(texts), vectors)
    plain.transform(sample[:100])
    read = seconds_of(lambda: cached.transform(texts))
    encoded = seconds_of(lambda: plain.transform(sample)) * n_rows / n
    name = f"rows read from the cache, against encoding at the rate of {n} CoLA sentences"
    return Comparison(name, (read,), (encoded,), 20.0, {"n": n_rows, "d": 384})


def _overhead(folder: Path, n: int, repeats: int) -> Comparison:
    """Compare encoding with an empty cache and without a cache."""
    sentences = distinct_texts("cola", "train")[:n]
    places = iter(folder / str(i) for i in range(repeats + 1))
    plain = encoder()
    return compare(
        "encoding into an empty cache, against encoding without one",
        lambda: encoder(next(places)).transform(sentences),
        lambda: plain.transform(sentences),
        repeats=repeats,
        target=0.9,
        n=len(sentences),
        d=384,
    )


def _two_processes(folder: Path, n: int, repeats: int) -> list[Comparison]:
    """Compare two processes that encode through one cache with one process, in one thread each."""
    texts = distinct_texts("cola", "train")
    seconds: dict[str, list[float]] = {"one": [], "the same": [], "other": []}
    shares = {"one": [(0, n)], "the same": [(0, n), (0, n)], "other": [(0, n), (n, 2 * n)]}
    with ExitStack() as stack:
        workers = [stack.enter_context(new_process(models=True)) for _ in range(2)]
        for worker in workers:
            worker.submit(_seconds, None, 0, 100).result()  # loads the model
        for i in range(repeats):
            for name, parts in shares.items():
                place = folder / f"{i}-{name}"
                pairs = zip(workers, parts, strict=False)
                runs = [worker.submit(_seconds, place, *part) for worker, part in pairs]
                seconds[name].append(max(run.result() for run in runs))
                distinct = {text for start, stop in parts for text in texts[start:stop]}
                np.testing.assert_equal(EmbeddingCache(place).stats().misses, len(distinct))
    facts = {"n": n, "d": 384}
    text = f"two processes with {{}} {n} texts through one cache, against one process"
    return [
        Comparison(text.format(name), tuple(seconds[name]), tuple(seconds["one"]), target, facts)
        for name, target in [("the same", 1 / 0.65), ("other", 0.9)]
    ]


def _seconds(folder: Path | None, start: int, stop: int) -> float:
    """Time the encoding of some sentences in one thread."""
    texts = distinct_texts("cola", "train")[start:stop]
    with single_thread():
        return seconds_of(lambda: encoder(folder).transform(texts))
