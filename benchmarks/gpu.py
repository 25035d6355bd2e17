"""What a GPU changes: `python -m benchmarks.gpu`. Without one it says so and ends well.

Checks that CPU and CUDA agree, measures both, and makes the encoder run out of memory on purpose.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from benchmarks._data import bumpy_cloud, load_embeddings, narrow_cone, shared_folder, stored_tasks
from benchmarks._harness import Result, Skipped, compare, versions
from benchmarks._report import speed_text
from benchmarks.bench_isoscore import isoscore_by_singular_values
from isoadapt import (
    CosRegAdapter,
    FlowAdapter,
    IsotropyLayer,
    IStarAdapter,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
)
from isoadapt.encoders import TransformerEncoder
from isoadapt.geometry import persistence_bars, persistent_entropy, select_bars
from isoadapt.geometry._isoscore import isoscore_star
from isoadapt.metrics import isoscore

D = 768
WORDS = ("of", "water", "family", "question", "government", "neighbourhood", "photosynthesis")


def isoscore_on_cuda() -> Iterator[Result]:
    """CPU and CUDA give the same score and gradient; then the two routes on CUDA."""
    for n in (64, 700, 8192):
        cloud = bumpy_cloud(n, D, seed=0)
        on_cpu, cpu_gradient = _value_and_gradient(isoscore_star, cloud)
        on_cuda, cuda_gradient = _value_and_gradient(isoscore_star, cloud.cuda())
        _agree(f"IsoScore, n={n}", on_cpu, on_cuda, 1e-4)
        scale = float(cpu_gradient.abs().max())
        _agree(f"gradient, n={n}", cpu_gradient / scale, cuda_gradient.cpu() / scale, 1e-2)
        yield _compare_routes(cloud.cuda())


def _compare_routes(cloud: Tensor) -> Result:
    return compare(
        "IsoScore forward + backward on CUDA, against svdvals",
        _finished(lambda: _value_and_gradient(isoscore_star, cloud)),
        _finished(lambda: _value_and_gradient(isoscore_by_singular_values, cloud)),
        repeats=7,
        n=len(cloud),
        d=D,
    )


def layer_on_cuda() -> Iterator[Result]:
    """Fits on both devices: the same geometry, and their times."""
    data = load_embeddings("cola") if "cola" in stored_tasks() else narrow_cone(8551, 384, seed=0)

    def fit(device: str, **settings: Any) -> IsotropyLayer:
        layer = IsotropyLayer(data.head, device=device, random_state=0, **settings)
        return layer.fit(data.X_train, data.y_train)

    for tolerance, settings in ((1e-6, {"solver": "exact"}), (0.05, {"max_epochs": 5})):
        on_cpu, on_cuda = (
            isoscore(fit(device, **settings).transform(data.X_test), bias_corrected=True)
            for device in ("cpu", "cuda")
        )
        _agree(f"IsotropyLayer {settings}, corrected IsoScore", on_cpu, on_cuda, tolerance)
    yield compare(
        "IsotropyLayer minibatch, 3 epochs, CUDA against CPU",
        _finished(lambda: fit("cuda", max_epochs=3, validation_fraction=None)),
        lambda: fit("cpu", max_epochs=3, validation_fraction=None),
        repeats=5,
        n=len(data.X_train),
        d=data.X_train.shape[1],
    )


def adapters_on_cuda() -> Iterator[Result]:
    """Every other trained adapter, fitted on both devices to the same rows: like outputs."""
    data = narrow_cone(2000, 96, seed=0)
    whole = {"validation_fraction": None, "random_state": 0}  # no epoch is chosen by rounding
    short = {**whole, "max_epochs": 3}
    for adapter in (
        IStarAdapter(data.head, **short),
        IStarAdapter(data.head, network="mlp", **short),
        CosRegAdapter(data.head, **short),
        SpectrumControlAdapter(data.head, **short),
        SpectrumControlAdapter(data.head, network="mlp", **short),
        TopologicalEntropyAdapter(data.head, **short),
        FlowAdapter(**short),
        FlowAdapter(data.head, alpha=0.5, **short),
    ):
        on_cpu, on_cuda = (
            clone(adapter)
            .set_params(device=device)
            .fit(data.X_train, data.y_train)
            .transform(data.X_test)
            for device in ("cpu", "cuda")
        )
        scale = np.abs(on_cpu).max()
        _agree(" ".join(repr(adapter).split()), on_cpu / scale, on_cuda / scale, 0.02)
    flow = FlowAdapter(**short)
    yield compare(
        "FlowAdapter, 3 epochs, CUDA against CPU",
        _finished(lambda: clone(flow).set_params(device="cuda").fit(data.X_train)),
        lambda: clone(flow).set_params(device="cpu").fit(data.X_train),
        repeats=3,
        n=len(data.X_train),
        d=data.X_train.shape[1],
    )


def bars_on_cuda() -> Iterator[Result]:
    """Bars and the gradient of their entropy stay on the device and equal the CPU's."""
    cloud = bumpy_cloud(1000, D, seed=0)

    def entropy(X: Tensor, cov: None = None, zeta: float = 0.0) -> Tensor:
        return persistent_entropy(select_bars(persistence_bars(X)))

    bars = persistence_bars(cloud.cuda())
    if not bars.is_cuda:
        raise ValueError("bars of points on CUDA came back on the CPU")
    _agree("persistence_bars", persistence_bars(cloud), bars.cpu(), 1e-3)
    on_cpu, cpu_gradient = _value_and_gradient(entropy, cloud)
    on_cuda, cuda_gradient = _value_and_gradient(entropy, cloud.cuda())
    _agree("entropy of the selected bars", on_cpu, on_cuda, 1e-4)
    scale = float(cpu_gradient.abs().max())
    _agree("its gradient", cpu_gradient / scale, cuda_gradient.cpu() / scale, 1e-2)
    yield compare(
        "entropy of bars, forward + backward, CUDA against CPU",
        _finished(lambda: _value_and_gradient(entropy, cloud.cuda())),
        lambda: _value_and_gradient(entropy, cloud),
        repeats=5,
        n=len(cloud),
        d=D,
    )


def encoder_on_cuda() -> Iterator[Result]:
    """Vectors of both devices agree, also after the batch had to be halved; then their times."""
    folder = Path(os.environ.get("ISOADAPT_MODEL", shared_folder() / "models" / "cola-minilm"))
    if not folder.is_dir():
        yield Skipped("TransformerEncoder", "no model: set ISOADAPT_MODEL to a checkpoint's folder")
        return
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, length)) for length in rng.integers(4, 60, 2000)]
    on_cpu, on_cuda = (TransformerEncoder(folder, device=device) for device in ("cpu", "cuda"))
    expected = on_cpu.transform(texts)
    _agree("TransformerEncoder", expected, on_cuda.transform(texts), 1e-3)
    greedy = TransformerEncoder(folder, device="cuda", batch_tokens=4_000_000)
    with _little_memory(extra=256 * 2**20):
        _agree(
            "TransformerEncoder short of memory, batches halved",
            expected,
            greedy.transform(texts),
            1e-3,
        )
    yield compare(
        "TransformerEncoder, CUDA against CPU",
        lambda: on_cuda.transform(texts),
        lambda: on_cpu.transform(texts),
        repeats=3,
        n=len(texts),
        d=expected.shape[1],
    )


@contextmanager
def _little_memory(extra: int) -> Iterator[None]:
    """Let this process have only `extra` bytes of CUDA memory beyond what it holds now."""
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


def _value_and_gradient(
    score: Callable[[Tensor, None, float], Tensor], X: Tensor
) -> tuple[Tensor, Tensor]:
    points = X.detach().requires_grad_()
    value = score(points, None, 0.0)
    (gradient,) = torch.autograd.grad(value, points)
    return value.detach().cpu(), gradient


def _finished(function: Callable[[], Any]) -> Callable[[], None]:
    """Wait for the device after the call, so that its work is in the time."""

    def call() -> None:
        function()
        torch.cuda.synchronize()

    return call


def _agree(name: str, expected: Any, found: Any, tolerance: float) -> None:
    difference = float(np.abs(np.asarray(expected) - np.asarray(found)).max())
    if not difference <= tolerance:
        raise ValueError(f"{name}: CPU and CUDA differ by {difference:.2g}, over {tolerance:g}")
    print(f"{name}: largest difference {difference:.2g}, at most {tolerance:g} allowed", flush=True)


def main() -> int:
    """Run all parts."""
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing to measure")
        return 0
    print(" · ".join(f"{name} {value}" for name, value in versions().items()))
    parts = (isoscore_on_cuda, layer_on_cuda, adapters_on_cuda, bars_on_cuda, encoder_on_cuda)
    results = [result for part in parts for result in part()]
    print(speed_text(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
