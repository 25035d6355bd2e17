"""Comparison of a GPU with the CPU: `python -m benchmarks.speed.gpu`.

It checks that CPU and CUDA give the same results, measures both, and makes the encoder run out of
memory on purpose. Without a GPU it prints a message and exits with status 0; `--device cpu --quick`
then runs all parts on small sizes.
"""

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from benchmarks._data import bumpy_cloud, narrow_cone
from benchmarks._versions import versions
from benchmarks.speed._devices import agree, finished, sample_data
from benchmarks.speed._gpu_encoding import bfloat16_on, cache_on, encoder_on
from benchmarks.speed._gpu_search import moments_on, search_on
from benchmarks.speed._harness import Result, compare
from benchmarks.speed._report import speed_text
from benchmarks.speed.finetuning import penalty_share
from benchmarks.speed.isoscore import isoscore_by_singular_values
from isoadapt import (
    CosRegAdapter,
    FlowAdapter,
    IsotropyLayer,
    IStarAdapter,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
)
from isoadapt.geometry import persistence_bars, persistent_entropy, select_bars
from isoadapt.geometry._isoscore import isoscore_star
from isoadapt.metrics import isoscore

D = 768

Part = Callable[[torch.device, bool], Iterator[Result]]


def isoscore_on(device: torch.device, quick: bool) -> Iterator[Result]:
    """Check that both devices give the same score and gradient, and time two algorithms."""
    for n in (64, 200) if quick else (64, 700, 8192):
        cloud = bumpy_cloud(n, D, seed=0)
        there = cloud.to(device)
        on_cpu, cpu_gradient = _value_and_gradient(isoscore_star, cloud)
        found, gradient = _value_and_gradient(isoscore_star, there)
        agree(f"IsoScore, n={n}", on_cpu, found, 1e-4)
        scale = float(cpu_gradient.abs().max())
        agree(f"gradient, n={n}", cpu_gradient / scale, gradient.cpu() / scale, 1e-2)
        yield _compare_routes(there, repeats=1 if quick else 7)


def _compare_routes(cloud: Tensor, repeats: int) -> Result:
    return compare(
        f"IsoScore forward + backward on {cloud.device.type}, against svdvals",
        finished(lambda: _value_and_gradient(isoscore_star, cloud), cloud.device),
        finished(lambda: _value_and_gradient(isoscore_by_singular_values, cloud), cloud.device),
        repeats=repeats,
        n=len(cloud),
        d=D,
    )


def layer_on(device: torch.device, quick: bool) -> Iterator[Result]:
    """Check that fits on both devices give the same geometry, and time them."""
    data = sample_data(quick)

    def fit(place: str, **settings: Any) -> IsotropyLayer:
        layer = IsotropyLayer(data.head, device=place, random_state=0, **settings)
        return layer.fit(data.X_train, data.y_train)

    for tolerance, settings in ((1e-6, {"solver": "exact"}), (0.05, {"max_epochs": 5})):
        on_cpu, found = (
            isoscore(fit(place, **settings).transform(data.X_test), bias_corrected=True)
            for place in ("cpu", device.type)
        )
        agree(f"IsotropyLayer {settings}, corrected IsoScore", on_cpu, found, tolerance)
    yield compare(
        f"IsotropyLayer minibatch, 3 epochs, {device.type} against CPU",
        finished(lambda: fit(device.type, max_epochs=3, validation_fraction=None), device),
        lambda: fit("cpu", max_epochs=3, validation_fraction=None),
        repeats=1 if quick else 5,
        n=len(data.X_train),
        d=data.X_train.shape[1],
    )


def adapters_on(device: torch.device, quick: bool) -> Iterator[Result]:
    """Check that each other trained adapter gives similar outputs when fitted on both devices."""
    data = narrow_cone(*(300, 16) if quick else (2000, 96), seed=0)
    whole = {"validation_fraction": None, "random_state": 0}  # else rounding may change the epoch
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
        on_cpu, found = (
            clone(adapter)
            .set_params(device=place)
            .fit(data.X_train, data.y_train)
            .transform(data.X_test)
            for place in ("cpu", device.type)
        )
        scale = np.abs(on_cpu).max()
        agree(" ".join(repr(adapter).split()), on_cpu / scale, found / scale, 0.02)
    flow = FlowAdapter(**short)
    yield compare(
        f"FlowAdapter, 3 epochs, {device.type} against CPU",
        finished(lambda: clone(flow).set_params(device=device.type).fit(data.X_train), device),
        lambda: clone(flow).set_params(device="cpu").fit(data.X_train),
        repeats=1 if quick else 3,
        n=len(data.X_train),
        d=data.X_train.shape[1],
    )


def bars_on(device: torch.device, quick: bool) -> Iterator[Result]:
    """Check that bars and the gradient of persistent entropy stay on the device and are right."""
    cloud = bumpy_cloud(100 if quick else 1000, D, seed=0)
    there = cloud.to(device)

    def entropy_of_points(X: Tensor, prior_cov: None = None, zeta: float = 0.0) -> Tensor:
        return persistent_entropy(select_bars(persistence_bars(X)))

    bars = persistence_bars(there)
    if bars.device.type != device.type:
        raise ValueError(f"bars of points on {device.type} came back on {bars.device.type}")
    agree("persistence_bars", persistence_bars(cloud), bars.cpu(), 1e-3)
    on_cpu, cpu_gradient = _value_and_gradient(entropy_of_points, cloud)
    found, gradient = _value_and_gradient(entropy_of_points, there)
    agree("persistent entropy of the selected bars", on_cpu, found, 1e-4)
    scale = float(cpu_gradient.abs().max())
    agree("its gradient", cpu_gradient / scale, gradient.cpu() / scale, 1e-2)
    yield compare(
        f"persistent entropy of points, forward + backward, {device.type} against CPU",
        finished(lambda: _value_and_gradient(entropy_of_points, there), device),
        lambda: _value_and_gradient(entropy_of_points, cloud),
        repeats=1 if quick else 5,
        n=len(cloud),
        d=D,
    )


def finetuning_on(device: torch.device, quick: bool) -> Iterator[Result]:
    """Measure the share of a fine-tuning step that each penalty takes, and Σ_S."""
    return penalty_share(device, 1, 4, n_rows=16) if quick else penalty_share(device, 25)


PARTS: tuple[Part, ...] = (
    isoscore_on,
    moments_on,
    layer_on,
    adapters_on,
    bars_on,
    search_on,
    encoder_on,
    bfloat16_on,
    cache_on,
    finetuning_on,
)


def _value_and_gradient(
    score: Callable[[Tensor, None, float], Tensor], X: Tensor
) -> tuple[Tensor, Tensor]:
    points = X.detach().requires_grad_()
    value = score(points, None, 0.0)
    (gradient,) = torch.autograd.grad(value, points)
    return value.detach().cpu(), gradient


def main(arguments: list[str] | None = None) -> int:
    """Run all parts; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.gpu", description=__doc__)
    parser.add_argument("--device", type=torch.device, default="cuda", help="compared with the CPU")
    parser.add_argument("--quick", action="store_true", help="small sizes, one repeat, no targets")
    options = parser.parse_args(arguments)
    if options.device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing to measure")
        return 0
    print(" · ".join(f"{name} {value}" for name, value in versions().items()))
    results: list[Result] = []
    failed: list[str] = []
    for part in PARTS:
        try:
            results += part(options.device, options.quick)
        except Exception:
            traceback.print_exc()
            failed.append(part.__name__)
    print(speed_text(results))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
