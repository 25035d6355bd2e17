"""Threads in training: a fit beside a busy program. Measure on an otherwise idle machine."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks._data import load_embeddings, narrow_cone
from benchmarks.speed._harness import Comparison, seconds_of
from isoadapt import IsotropyLayer

BUSY = "import torch\nA = torch.randn(2000, 2000)\nprint('busy', flush=True)\nwhile True: A @ A"


def run(quick: bool) -> Iterator[Comparison]:
    """Compare a fit beside a busy process with one alone."""
    data = narrow_cone(400, 384, seed=0) if quick else load_embeddings("mrpc")
    layer = IsotropyLayer(data.head, device="cpu", random_state=0)
    busy, alone = [], []
    for _ in range(1 if quick else 3):
        alone.append(seconds_of(lambda: layer.fit(data.X_train, data.y_train)))
        with _busy_process():
            busy.append(seconds_of(lambda: layer.fit(data.X_train, data.y_train)))
    yield Comparison(
        "IsotropyLayer, default fit, beside a busy process, against alone",
        tuple(busy),
        tuple(alone),
        1 / 2.5,
        {"n": len(data.X_train), "d": data.X_train.shape[1]},
    )


@contextmanager
def _busy_process() -> Iterator[None]:
    """Run a process that multiplies matrices in all threads while the block runs."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is None or process.stdout.readline().strip() != b"busy":
                raise RuntimeError("the process that should keep the cores busy has not started")
            yield
        finally:
            process.kill()
