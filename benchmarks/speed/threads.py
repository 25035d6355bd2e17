"""Threads in training: the sizes that gain from all threads, and fits beside a busy program.

Measure on an otherwise idle machine.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from unittest.mock import patch

import torch

from benchmarks._data import Embeddings, load_embeddings, narrow_cone, stored_tasks
from benchmarks.speed._harness import Comparison, Result, Skipped, compare
from isoadapt import IsotropyLayer
from isoadapt._utils import threads as _threads
from isoadapt.adapters._training._engine import train_members

SIZES = [  # members, rows of a batch, features
    (1, 64, 384),
    (2, 64, 384),
    (4, 64, 384),
    (8, 64, 384),
    (48, 64, 384),
    (1, 64, 768),
    (1, 64, 1024),
    (1, 8, 2048),
    (1, 256, 384),
    (1, 512, 384),
    (1, 512, 1024),
    (1, 4096, 768),
]
QUICK_SIZES = [(1, 64, 384), (1, 512, 384)]
TARGET = 1 / 2.5
BUSY = """
import torch

A = torch.randn(2000, 2000)
print("busy", flush=True)
while True:
    A @ A
"""


def run(quick: bool) -> list[Result]:
    """Compare steps in one and in all threads, then fits alone and beside a busy process."""
    if torch.get_num_threads() == 1:
        return [Skipped("threads of training", "torch has only one: unset OMP_NUM_THREADS")]
    sizes = QUICK_SIZES if quick else SIZES
    stored = "mrpc" in stored_tasks() and not quick
    data = load_embeddings("mrpc") if stored else narrow_cone(400 if quick else 3668, 384, seed=0)
    steps = [_steps(*size, repeats=1 if quick else 3) for size in sizes]
    beside = _beside_busy("IsotropyLayer, default fit", data, 1 if quick else 3, TARGET)
    if quick:
        return [*steps, beside]
    name = "IsotropyLayer, default fit in all threads"
    return [*steps, beside, _beside_busy(name, data, 1, None, all_threads)]


@contextmanager
def all_threads() -> Iterator[None]:
    """Run all steps in all threads inside the block."""
    with patch.object(_threads, "LARGE_STEP", 0):
        yield


def _steps(n_members: int, n_rows: int, d: int, repeats: int) -> Comparison:
    """Compare epochs in all threads with epochs in one; above 1, all threads are faster."""
    n_steps = 4 if n_members * n_rows * d * d > 2e8 else 24
    data = narrow_cone(n_steps * n_rows, d, seed=0)
    layer = IsotropyLayer(
        data.head,
        validation_fraction=None,
        max_epochs=1,
        batch_size=n_rows,
        device="cpu",
        random_state=0,
    )
    problem = layer._prepare(data.X_train, data.y_train)
    members = [layer._make_member(problem) for _ in range(n_members)]
    train = partial(train_members, members, tick=lambda finished: None)

    def in_all() -> None:
        with all_threads():
            train()

    def in_one() -> None:
        with _threads.one_thread():
            train()

    return compare(
        f"{n_steps} steps of {n_members} IsotropyLayer fits together in all threads, against one",
        in_all,
        in_one,
        repeats=repeats,
        n=n_rows,
        d=d,
        members=n_members,
        threads=torch.get_num_threads(),
        product=n_members * d * (d + 1) * (n_rows + _threads.UPDATE_ROWS),
        large=_threads.LARGE_STEP,
    )


def _beside_busy(
    name: str,
    data: Embeddings,
    repeats: int,
    target: float | None,
    setting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Comparison:
    """Compare fits alone with fits beside a process that multiplies matrices in all threads."""
    layer = IsotropyLayer(data.head, device="cpu", random_state=0)
    busy: list[float] = []
    alone: list[float] = []
    with setting():
        layer.fit(data.X_train, data.y_train)
        for _ in range(repeats):
            alone.append(_fit_seconds(layer, data))
            with _busy_process():
                busy.append(_fit_seconds(layer, data))
    return Comparison(
        f"{name}, beside a busy process, against alone",
        tuple(busy),
        tuple(alone),
        target,
        {"n": len(data.X_train), "d": data.X_train.shape[1], "data": data.name},
    )


def _fit_seconds(layer: IsotropyLayer, data: Embeddings) -> float:
    begun = time.perf_counter()
    layer.fit(data.X_train, data.y_train)
    return time.perf_counter() - begun


@contextmanager
def _busy_process() -> Iterator[None]:
    """Run a process that uses all cores while the block runs."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is None or process.stdout.readline().strip() != b"busy":
                raise RuntimeError("the process that should keep the cores busy has not started")
            yield
        finally:
            process.kill()
