"""What the benchmarks run on: stored embeddings where there are any, synthetic ones otherwise."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoadapt import LinearHead

Floats = NDArray[np.floating[Any]]


class Embeddings(NamedTuple):
    """Embeddings of two classes and the head that reads them."""

    name: str
    X_train: Floats
    y_train: NDArray[np.int64]
    X_test: Floats
    y_test: NDArray[np.int64]
    head: LinearHead


class UnseenRows(NamedTuple):
    """Embeddings of rows that the encoder was not fitted to, and the numbers of rows to fit on."""

    name: str
    X: Floats
    y: NDArray[Any]
    sizes: tuple[int, ...]


def shared_folder() -> Path:
    """Folder of shared data: ISOADAPT_SHARED, else `shared` beside the repository."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    return Path(os.environ.get("ISOADAPT_SHARED", beside))


def stored_tasks() -> list[str]:
    """Names of the stored embeddings."""
    return sorted(path.stem for path in (shared_folder() / "embeddings").glob("*.npz"))


def load_embeddings(task: str) -> Embeddings:
    """Read stored embeddings; judged on the test split, or on dev where there is none."""
    with np.load(shared_folder() / "embeddings" / f"{task}.npz") as stored:
        split = "test" if "E_test" in stored else "dev"
        return Embeddings(
            f"{task} {split}",
            stored["E_train"],
            stored["y_train"],
            stored[f"E_{split}"],
            stored[f"y_{split}"],
            LinearHead(stored["W"], stored["b"], [0, 1]),
        )


def load_unseen(task: str, sizes: tuple[int, ...] = ()) -> UnseenRows:
    """Read all stored rows but the training split and those that also stand in it."""
    with np.load(shared_folder() / "embeddings" / f"{task}.npz") as stored:
        splits = [split for split in ("dev", "test") if f"E_{split}" in stored]
        X = np.concatenate([stored[f"E_{split}"] for split in splits])
        y = np.concatenate([stored[f"y_{split}"] for split in splits])
        seen = {row.tobytes() for row in stored["E_train"]}
    new = np.array([row.tobytes() not in seen for row in X])
    return UnseenRows(f"{task} {' + '.join(splits)}", X[new], y[new], sizes)


def narrow_cone(n: int, d: int, seed: int) -> Embeddings:
    """Synthetic embeddings as a fine-tuned encoder gives them, n rows to train on and n // 8 more.

    A mean far from the origin, one direction that carries nearly all variance and separates the
    classes up to some noise, and a decaying rest.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=n + n // 8)
    along = 2 * labels - 1 + 0.7 * rng.normal(size=len(labels))
    axis, centre = np.linalg.qr(rng.normal(size=(d, 2)))[0].T
    rest = 0.1 * rng.normal(size=(len(labels), d)) * np.arange(1, d + 1) ** -0.7
    X = (3 * centre + np.outer(along, axis) + rest).astype(np.float32)
    head = LinearHead(np.stack([-axis, axis]), [0.0, 0.0], [0, 1])
    return Embeddings("synthetic cone", X[:n], labels[:n], X[n:], labels[n:], head)


def bumpy_cloud(n: int, d: int, seed: int) -> Tensor:
    """Gaussian points with variances 10, 6, 4, 4 and 1 for the rest, float32."""
    generator = torch.Generator().manual_seed(seed)
    variances = torch.ones(d)
    variances[:4] = torch.tensor([10.0, 6.0, 4.0, 4.0])
    return torch.randn(n, d, generator=generator) * variances.sqrt()
