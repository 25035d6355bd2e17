"""Comparison of a GPU with the CPU: `python -m benchmarks.speed.gpu`.

It first says what it checks. Parts that do not begin within `--seconds` are left out. `--quick`
uses small sizes; with `--device cpu` no GPU is needed.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from benchmarks._data import Embeddings, bumpy_cloud, embeddings_or_cone, narrow_cone, shared_folder
from benchmarks._versions import versions, written
from benchmarks.speed._harness import Measurement, Result, compare, seconds_of, table
from benchmarks.speed.finetuning import penalty_share
from benchmarks.speed.isoscore import isoscore_by_singular_values, value_and_gradient
from benchmarks.speed.search import GRID, SMALL
from isoadapt import (
    CosRegAdapter,
    EmbeddingCache,
    FlowAdapter,
    IsotropyLayer,
    IStarAdapter,
    SpectrumControlAdapter,
    TeacherReadout,
    TopologicalEntropyAdapter,
    TransformerEncoder,
)
from isoadapt.datasets import minilm_folder
from isoadapt.geometry import Moments, persistence_bars, persistent_entropy, select_bars
from isoadapt.geometry._isoscore import isoscore_star
from isoadapt.metrics import isoscore
from isoadapt.model_selection import AdapterSearchCV

D = 768
WORDS = ("of", "water", "family", "question", "government", "neighbourhood", "photosynthesis")


def agree(name: str, expected: Any, found: Any, tolerance: float) -> None:
    """Print the largest difference, and raise if it is above the tolerance."""
    difference = float(np.abs(np.asarray(expected) - np.asarray(found)).max())
    if not difference <= tolerance:
        raise ValueError(f"{name}: the devices differ by {difference:.2g}, over {tolerance:g}")
    print(f"{name}: largest difference {difference:.2g}, at most {tolerance:g} allowed", flush=True)


def timed(
    name: str, ours: Callable[[], Any], reference: Callable[[], Any], quick: bool, rows: Any
) -> Result:
    """Compare two calls on rows (n, d), each with all its work on the GPU."""

    def finished(call: Callable[[], Any]) -> None:
        call()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    calls = (partial(finished, call) for call in (ours, reference))
    return compare(name, *calls, repeats=1 if quick else 5, n=len(rows), d=rows.shape[1])


def scores(device: torch.device, quick: bool) -> Iterator[Result]:
    """IsoScore and its gradient, against an algorithm by singular values."""
    for n in (64, 200) if quick else (64, 700, 8192):
        cloud = bumpy_cloud(n, D, seed=0)
        there = cloud.to(device)
        expected, cpu_gradient = value_and_gradient(isoscore_star, cloud)
        found, gradient = value_and_gradient(isoscore_star, there)
        agree(f"IsoScore, n={n}", expected, found.cpu(), 1e-4)
        scale = float(cpu_gradient.abs().max())
        agree(f"gradient, n={n}", cpu_gradient / scale, gradient.cpu() / scale, 1e-2)
        kinds = isoscore_star, isoscore_by_singular_values
        calls = (partial(value_and_gradient, kind, there) for kind in kinds)
        name = f"IsoScore forward + backward on {device.type}, against svdvals"
        yield timed(name, *calls, quick, cloud)


def moments(device: torch.device, quick: bool) -> Iterator[Result]:
    """Moments: the covariance, in one pass."""
    n, d = (500, 32) if quick else (200_000, 384)
    points = bumpy_cloud(n, d, seed=0) + 100
    there = points.to(device)
    expected, found = (Moments().update(rows).covariance() for rows in (points, there))
    if found.device.type != device.type:
        raise ValueError(f"moments of points on {device.type} are on {found.device.type}")
    agree("Moments, covariance", expected, found.cpu(), 1e-10 * float(expected.abs().max()))
    agree("IsoScore of a tensor there", isoscore(points), isoscore(there), 0.0)
    calls = (lambda rows=rows: Moments().update(rows) for rows in (there, points))
    yield timed(f"Moments, {device.type} against CPU", *calls, quick, points)


def layer(device: torch.device, quick: bool) -> Iterator[Result]:
    """Fits of an Isotropy Layer: the IsoScore they reach."""
    data = _data(quick)

    def fit(place: str, **settings: Any) -> IsotropyLayer:
        layer = IsotropyLayer(data.head, device=place, random_state=0, **settings)
        return layer.fit(data.X_train, data.y_train)

    for tolerance, settings in ((1e-6, {"solver": "exact"}), (0.05, {"max_epochs": 5})):
        on_cpu, found = (
            isoscore(fit(place, **settings).transform(data.X_test), bias_corrected=True)
            for place in ("cpu", device.type)
        )
        agree(f"IsotropyLayer {settings}, corrected IsoScore", on_cpu, found, tolerance)
    short = {"max_epochs": 3, "validation_fraction": None}
    calls = (partial(fit, place, **short) for place in (device.type, "cpu"))
    name = f"IsotropyLayer minibatch, 3 epochs, {device.type} against CPU"
    yield timed(name, *calls, quick, data.X_train)


def adapters(device: torch.device, quick: bool) -> Iterator[Result]:
    """Fits of each other trained adapter: their outputs."""
    data = narrow_cone(*(300, 16) if quick else (2000, 96), seed=0)
    # With validation rows, rounding may change the epoch that is kept.
    short = {"validation_fraction": None, "random_state": 0, "max_epochs": 3}
    flow = FlowAdapter(**short)
    for adapter in (
        IStarAdapter(data.head, **short),
        CosRegAdapter(data.head, **short),
        SpectrumControlAdapter(data.head, **short),
        TopologicalEntropyAdapter(data.head, **short),
        flow,
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
    flows = (clone(flow).set_params(device=place) for place in (device.type, "cpu"))
    calls = (partial(each.fit, data.X_train) for each in flows)
    yield timed(f"FlowAdapter, 3 epochs, {device.type} against CPU", *calls, quick, data.X_train)


def bars(device: torch.device, quick: bool) -> Iterator[Result]:
    """Bars and the gradient of persistent entropy, which stay on the device."""
    cloud = bumpy_cloud(100 if quick else 1000, D, seed=0)
    there = cloud.to(device)

    def entropy(X: torch.Tensor) -> torch.Tensor:
        return persistent_entropy(select_bars(persistence_bars(X)))

    found_bars = persistence_bars(there)
    if found_bars.device.type != device.type:
        raise ValueError(f"bars of points on {device.type} came back on {found_bars.device.type}")
    agree("persistence_bars", persistence_bars(cloud), found_bars.cpu(), 1e-3)
    expected, cpu_gradient = value_and_gradient(entropy, cloud)
    found, gradient = value_and_gradient(entropy, there)
    agree("persistent entropy of the selected bars", expected, found.cpu(), 1e-4)
    scale = float(cpu_gradient.abs().max())
    agree("its gradient", cpu_gradient / scale, gradient.cpu() / scale, 1e-2)
    calls = (partial(value_and_gradient, entropy, points) for points in (there, cloud))
    name = f"persistent entropy of points, forward + backward, {device.type} against CPU"
    yield timed(name, *calls, quick, cloud)


def search(device: torch.device, quick: bool) -> Iterator[Result]:
    """A search of 24 × 5 fits: its scores are those of single fits and of the CPU."""
    data, grid = _data(quick), SMALL if quick else GRID
    adapter = IStarAdapter(data.head, max_epochs=5, random_state=0)

    def found(kind: type, place: str, grid: dict[str, list[float]]) -> Any:
        adapter.set_params(device=place)
        searched = kind(adapter, grid, cv=5, refit=False).fit(data.X_train, data.y_train)
        return searched.cv_results_["mean_test_score"]

    few = {name: values[:1] for name, values in grid.items()}
    begun = time.perf_counter()
    scores = found(AdapterSearchCV, device.type, grid)
    seconds = time.perf_counter() - begun
    name, n_fits = f"AdapterSearchCV on {device.type}", 5 * len(scores)
    yield Measurement(f"{name}, {n_fits} fits", (seconds,), {"n": len(data.X_train)})
    begun = time.perf_counter()
    alone = found(GridSearchCV, device.type, few)
    each = (time.perf_counter() - begun) / 5
    yield Measurement("one fit of GridSearchCV there", (each,), {"n": len(data.X_train)})
    print(f"{name}: {n_fits * each / seconds:.1f} times as fast as single fits (target 25)")
    agree("AdapterSearchCV, scores on CPU", found(AdapterSearchCV, "cpu", few), alone, 0.003)
    agree("AdapterSearchCV, scores one by one", alone, scores[:1], 0.003)


def encoder(device: torch.device, quick: bool) -> Iterator[Result]:
    """Vectors of texts, with batches halved when memory runs out."""
    folder, texts = _checkpoint(), _texts(quick)
    on_cpu, on_device = (TransformerEncoder(folder, device=place) for place in ("cpu", device))
    expected = on_cpu.transform(texts)
    agree("TransformerEncoder", expected, on_device.transform(texts), 1e-3)
    if device.type == "cuda" and not quick:
        greedy = TransformerEncoder(folder, device=device, batch_tokens=4_000_000)
        with _little_memory(extra=256 * 2**20):
            found = greedy.transform(texts)
        agree("TransformerEncoder short of memory, batches halved", expected, found, 1e-3)
    calls = (partial(each.transform, texts) for each in (on_device, on_cpu))
    yield timed(f"TransformerEncoder, {device.type} against CPU", *calls, quick, expected)


def bfloat16(device: torch.device, quick: bool) -> Iterator[Result]:
    """Vectors in bfloat16: their mean cosine to those in float32 is near 1."""
    folder, texts = _checkpoint(), _texts(quick)
    exact, half = (
        TransformerEncoder(folder, device=device, dtype=dtype) for dtype in ("float32", "bfloat16")
    )
    expected, found = exact.transform(texts), half.transform(texts)
    lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
    cosines = (expected * found).sum(axis=1) / lengths
    agree("bfloat16, mean cosine to float32", 1.0, cosines.mean(), 1e-3)
    print(f"bfloat16, lowest cosine to float32: {cosines.min():.4f}")
    calls = (partial(each.transform, texts) for each in (half, exact))
    name = f"TransformerEncoder on {device.type}, bfloat16 against float32"
    yield timed(name, *calls, quick, expected)


def readout(device: torch.device, quick: bool) -> Iterator[Result]:
    """A readout of the columns that the device computes: its vectors are those of the CPU."""
    folder, texts = _checkpoint(), _texts(quick)
    found = []
    for place in (device, "cpu"):
        encoder = TransformerEncoder(folder, pooling="readout", device=place)
        teacher = TransformerEncoder(folder, pooling="mean", device=place).transform(texts)
        columns, fit = encoder.transform(texts), TeacherReadout(ridge=0.01).fit
        found.append((fit(columns, teacher).transform(columns), columns, teacher))
    agree("TeacherReadout", found[1][0], found[0][0], 1e-2)
    seconds = seconds_of(lambda: fit(*found[0][1:]))
    sizes = {"n": len(texts), "d": found[0][1].shape[1]}
    yield Measurement("TeacherReadout.fit, which runs on the CPU", (seconds,), sizes)


def cache(device: torch.device, quick: bool) -> Iterator[Result]:
    """A cache: each unique text is encoded once; reading against encoding."""
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
        calls = (partial(each.transform, texts) for each in (cached, bare))
        name = f"reading from the cache, against encoding on {device.type}"
        yield timed(name, *calls, quick, first[: len(texts)])


def finetuning(device: torch.device, quick: bool) -> Iterator[Result]:
    """Fine-tuning: the share of a step that each penalty takes, and Σ_S."""
    return penalty_share(device, *((1, 4, 16) if quick else (25, 32, 4096)))


PARTS = (encoder, bfloat16, layer, search, readout, adapters, scores, moments, bars)
PARTS += (cache, finetuning)


def _data(quick: bool) -> Embeddings:
    return narrow_cone(300, 16, seed=0) if quick else embeddings_or_cone("cola", 8551)


def _checkpoint() -> Path:
    """Return the folder in ISOADAPT_MODEL, else the stored checkpoint, else all-MiniLM-L6-v2."""
    stored = shared_folder() / "models" / "cola-minilm"
    if "ISOADAPT_MODEL" in os.environ:
        return Path(os.environ["ISOADAPT_MODEL"])
    return stored if stored.is_dir() else minilm_folder()


def _texts(quick: bool) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, k)) for k in rng.integers(4, 60, 40 if quick else 2000)]


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


def main(arguments: list[str] | None = None) -> int:
    """Run all parts; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.gpu", description=__doc__)
    parser.add_argument("--device", type=torch.device, default="cuda", help="compared with the CPU")
    parser.add_argument("--quick", action="store_true", help="small sizes, one repeat, no targets")
    parser.add_argument("--seconds", type=float, default=330, help="no part begins after these")
    options = parser.parse_args(arguments)
    if options.device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing to measure")
        return 0
    print(f"On {options.device} and on the CPU, this checks and measures, in this order:")
    print("\n".join(f"- {part.__name__}: {part.__doc__}" for part in PARTS), flush=True)
    results: list[Result] = []
    failed: list[str] = []
    begun = time.perf_counter()
    for part in PARTS:
        spent = time.perf_counter() - begun
        if spent > options.seconds:
            print(f"{part.__name__}: left out after {spent:.0f} s", flush=True)
            continue
        print(f"\n{part.__name__}, after {spent:.0f} s", flush=True)
        try:
            results += part(options.device, options.quick)
        except Exception:  # continue with the other parts
            traceback.print_exc()
            failed.append(part.__name__)
    print(f"{table(results)}\n\nMeasured with {written(versions())}.")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
