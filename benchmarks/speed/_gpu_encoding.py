"""The benchmarks of `benchmarks.speed.gpu` that encode texts."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from benchmarks._data import shared_folder
from benchmarks.speed._devices import agree
from benchmarks.speed._harness import Result, compare
from isoadapt.datasets import minilm_folder
from isoadapt.encoders import EmbeddingCache, TransformerEncoder

WORDS = ("of", "water", "family", "question", "government", "neighbourhood", "photosynthesis")


def encoder_on(device: torch.device, quick: bool) -> Iterator[Result]:
    """Check that both devices give the same vectors, also with halved batches, and time them."""
    folder, texts = _checkpoint(), _texts(quick)
    on_cpu, on_device = (TransformerEncoder(folder, device=place) for place in ("cpu", device))
    expected = on_cpu.transform(texts)
    agree("TransformerEncoder", expected, on_device.transform(texts), 1e-3)
    if device.type == "cuda":
        greedy = TransformerEncoder(folder, device=device, batch_tokens=4_000_000)
        with _little_memory(extra=256 * 2**20):
            found = greedy.transform(texts)
        agree("TransformerEncoder short of memory, batches halved", expected, found, 1e-3)
    yield compare(
        f"TransformerEncoder, {device.type} against CPU",
        lambda: on_device.transform(texts),
        lambda: on_cpu.transform(texts),
        repeats=1 if quick else 3,
        n=len(texts),
        d=expected.shape[1],
    )


def bfloat16_on(device: torch.device, quick: bool) -> Iterator[Result]:
    """Check that the mean cosine of bfloat16 to float32 vectors is near 1, and time both."""
    folder, texts = _checkpoint(), _texts(quick)
    exact, half = (
        TransformerEncoder(folder, device=device, dtype=dtype) for dtype in ("float32", "bfloat16")
    )
    expected, found = exact.transform(texts), half.transform(texts)
    lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
    cosines = (expected * found).sum(axis=1) / lengths
    agree("bfloat16, mean cosine to float32", 1.0, cosines.mean(), 1e-3)
    print(f"bfloat16, lowest cosine to float32: {cosines.min():.4f}")
    yield compare(
        f"TransformerEncoder on {device.type}, bfloat16 against float32",
        lambda: half.transform(texts),
        lambda: exact.transform(texts),
        repeats=1 if quick else 5,
        n=len(texts),
        d=expected.shape[1],
    )


def cache_on(device: torch.device, quick: bool) -> Iterator[Result]:
    """Check that a cache encodes each unique text once, and time reading against encoding."""
    folder, texts = _checkpoint(), _texts(quick)
    bare = TransformerEncoder(folder, device=device)
    with tempfile.TemporaryDirectory() as store:
        cached = TransformerEncoder(folder, device=device, cache=store)
        first = cached.transform(texts + texts)
        agree("rows through a cache", np.tile(bare.transform(texts), (2, 1)), first, 1e-3)
        agree("rows read again", first[: len(texts)], cached.transform(texts), 0.0)
        misses, unique = EmbeddingCache(store).stats().misses, len(set(texts))
        if misses != unique:
            raise ValueError(f"{misses} texts were encoded for {unique} unique ones")
        yield compare(
            f"reading from the cache, against encoding on {device.type}",
            lambda: cached.transform(texts),
            lambda: bare.transform(texts),
            repeats=1 if quick else 5,
            n=len(texts),
            d=first.shape[1],
        )


def _checkpoint() -> Path:
    """Return the folder in ISOADAPT_MODEL, else the stored checkpoint, else all-MiniLM-L6-v2."""
    stored = shared_folder() / "models" / "cola-minilm"
    if "ISOADAPT_MODEL" in os.environ:
        return Path(os.environ["ISOADAPT_MODEL"])
    return stored if stored.is_dir() else minilm_folder()


def _texts(quick: bool) -> list[str]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 60, 40 if quick else 2000)
    return [" ".join(rng.choice(WORDS, length)) for length in lengths]


@contextmanager
def _little_memory(extra: int) -> Iterator[None]:
    """Limit the CUDA memory of this process to `extra` bytes more than it uses now."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + extra) / total)
    before = torch.cuda.memory_stats()["num_ooms"]
    try:
        yield
        if torch.cuda.memory_stats()["num_ooms"] == before:
            raise RuntimeError("memory did not run out, so that halving batches was not tried")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
