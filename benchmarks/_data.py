"""The data of the benchmarks: stored embeddings if available, synthetic ones otherwise."""

import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoadapt import LinearHead
from isoadapt.datasets import load_table

Floats = NDArray[np.floating[Any]]
BUMPS = (10.0, 6.0, 4.0, 4.0)  # the first variances of generated points


class Embeddings(NamedTuple):
    """Embeddings of two classes, or for values of a regression, and their linear head."""

    name: str
    X_train: Floats
    y_train: NDArray[Any]
    X_test: Floats
    y_test: NDArray[Any]
    head: LinearHead


def shared_folder() -> Path:
    """Return the folder of shared data: ISOADAPT_SHARED, or `shared` next to the repository."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    return Path(os.environ.get("ISOADAPT_SHARED", beside))


def read_table(task: str, split: str) -> tuple[list[Any], NDArray[Any]]:
    """Return the texts or pairs of a split in the folder of shared data, and their labels."""
    texts, labels = load_table(shared_folder() / "data" / task / f"{split}.tsv")
    return list(texts), np.asarray(labels)


def distinct_texts(task: str, split: str) -> list[str]:
    """Return the distinct texts of a split."""
    return list(dict.fromkeys(read_table(task, split)[0]))


def load_embeddings(task: str) -> Embeddings:
    """Read stored embeddings; without a test split, the test rows are those of the dev split."""
    with np.load(shared_folder() / "embeddings" / f"{task}.npz") as stored:
        split = "test" if "E_test" in stored else "dev"
        head = LinearHead(stored["W"], stored["b"], [0, 1] if len(stored["W"]) == 2 else None)
        arrays = (stored[f"{name}_{part}"] for part in ("train", split) for name in "Ey")
        return Embeddings(f"{task} {split}", *arrays, head)


@cache
def load_unseen(task: str) -> tuple[Floats, NDArray[Any]]:
    """Read all stored rows except the training split and copies of its rows."""
    with np.load(shared_folder() / "embeddings" / f"{task}.npz") as stored:
        splits = [split for split in ("dev", "test") if f"E_{split}" in stored]
        X = np.concatenate([stored[f"E_{split}"] for split in splits])
        y = np.concatenate([stored[f"y_{split}"] for split in splits])
        seen = {row.tobytes() for row in stored["E_train"]}
    new = np.array([row.tobytes() not in seen for row in X])
    return X[new], y[new]


def narrow_cone(n: int, d: int, seed: int) -> Embeddings:
    """Generate embeddings like those of a fine-tuned encoder: n training and n // 8 test rows.

    The mean is far from the origin. One direction has nearly all the variance and separates the
    classes up to noise. The variance of the other directions decays.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=n + n // 8)
    along = 2 * labels - 1 + 0.7 * rng.normal(size=len(labels))
    axis, centre = np.linalg.qr(rng.normal(size=(d, 2)))[0].T
    rest = 0.1 * rng.normal(size=(len(labels), d)) * np.arange(1, d + 1) ** -0.7
    X = (3 * centre + np.outer(along, axis) + rest).astype(np.float32)
    head = LinearHead(np.stack([-axis, axis]), [0.0, 0.0], [0, 1])
    return Embeddings("synthetic cone", X[:n], labels[:n], X[n:], labels[n:], head)


def bumpy_variances(d: int) -> NDArray[np.float32]:
    """Return `BUMPS` and then 1 as variances of d columns."""
    values = np.ones(d, np.float32)
    values[: len(BUMPS)] = BUMPS
    return values


def bumpy_cloud(n: int, d: int, seed: int) -> Tensor:
    """Draw n Gaussian points (float32) with the variances of `bumpy_variances`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator) * torch.from_numpy(bumpy_variances(d)).sqrt()
