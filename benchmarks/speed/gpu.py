"""Comparison of a GPU with the CPU: `python -m benchmarks.speed.gpu`.

Each part says what it checks. `--quick` uses small sizes; with `--device cpu` no GPU is needed.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import Tensor

import isoadapt as iso
from benchmarks._data import Embeddings, bumpy_cloud, load_embeddings, narrow_cone, shared_folder
from benchmarks.speed._harness import Comparison, compare, run_all, seconds_of
from benchmarks.speed.finetuning import penalty_share
from benchmarks.speed.isoscore import value_and_gradient
from benchmarks.speed.search import GRID, SMALL
from isoadapt.adapters._registry import REGISTRY, adapter_class
from isoadapt.geometry import Moments, persistence_bars, persistent_entropy, select_bars
from isoadapt.geometry._isoscore import isoscore_star
from isoadapt.metrics import isoscore
from isoadapt.model_selection import AdapterSearchCV

D = 768
WORDS = ("of", "water", "family", "question", "government", "neighbourhood", "photosynthesis")
Part = Iterator[Comparison]


def agree(name: str, expected: Any, found: Any, tolerance: float) -> None:
    """Print the largest difference, and raise if it is above the tolerance."""
    expected, found = (np.asarray(torch.as_tensor(each).cpu()) for each in (expected, found))
    difference = float(np.abs(expected - found).max())
    if not difference <= tolerance:
        raise ValueError(f"{name}: the devices differ by {difference:.2g}, over {tolerance:g}")
    print(f"{name}: largest difference {difference:.2g}, at most {tolerance:g} allowed", flush=True)


def timed(name: str, calls: Iterable[Callable[[], Any]], quick: bool, rows: Any) -> Comparison:
    """Compare two calls on rows (n, d), each with all its work on the GPU."""

    def finished(call: Callable[[], Any]) -> None:
        call()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    ended = (partial(finished, call) for call in calls)
    return compare(name, *ended, repeats=1 if quick else 5, rows=rows)


def geometry(device: torch.device, quick: bool) -> Part:
    """Moments, bars, IsoScore and persistent entropy of points there, and their gradients."""
    sizes, few = ((64, 200), 100) if quick else ((64, 700, 8192), 1000)
    cloud = bumpy_cloud(sizes[-1], D, seed=0)
    there = cloud.to(device)
    expected, found = (Moments().update(rows + 100).covariance() for rows in (cloud, there))
    agree("Moments, covariance", expected, found, 1e-10 * float(expected.abs().max()))
    agree("IsoScore of a tensor there", isoscore(cloud), isoscore(there), 0.0)
    bars = persistence_bars(there[:few])
    agree("persistence_bars", persistence_bars(cloud[:few]), bars, 1e-3)
    if {found.device.type, bars.device.type} != {device.type}:
        raise ValueError(f"what was computed on {device.type} is on {found.device}, {bars.device}")

    def entropy(X: Tensor) -> Tensor:
        return persistent_entropy(select_bars(persistence_bars(X)))

    pairs = [(isoscore_star, n) for n in sizes]
    for score, n in (*pairs, (entropy, few)):
        name = f"{'IsoScore' if score is isoscore_star else 'persistent entropy'} of {n} points"
        (expected, gradient), (found, other) = (
            value_and_gradient(score, points[:n]) for points in (cloud, there)
        )
        agree(name, expected, found, 1e-4)
        scale = float(gradient.abs().max())
        agree(f"gradient of {name}", gradient / scale, other / scale, 1e-2)
        calls = (partial(value_and_gradient, score, points[:n]) for points in (there, cloud))
        title = f"{name}, forward + backward, {device.type} against CPU"
        yield timed(title, calls, quick, cloud[:n])


def adapters(device: torch.device, quick: bool) -> Part:
    """Fits of each trained adapter: their outputs, or the IsoScore of an Isotropy Layer."""
    data = narrow_cone(*(300, 16) if quick else (2000, 96), seed=0)
    # With validation rows, rounding may change the epoch that is kept.
    short = {"validation_fraction": None, "random_state": 0, "max_epochs": 3}
    penalised = (adapter_class(each.adapter) for each in REGISTRY.values() if each.loss)
    flow, joint = iso.FlowAdapter(**short), iso.FlowAdapter(data.head, alpha=0.5, **short)

    def fit(adapter: Any, place: str) -> Any:
        return clone(adapter).set_params(device=place).fit(data.X_train, data.y_train)

    for adapter in (*(kind(data.head, **short) for kind in penalised), flow, joint):
        fits = (fit(adapter, place) for place in ("cpu", device.type))
        expected, found = (each.transform(data.X_test) for each in fits)
        scale = np.abs(expected).max()
        agree(" ".join(repr(adapter).split()), expected / scale, found / scale, 0.02)
    data = _data(quick)
    trained = iso.IsotropyLayer(data.head, random_state=0, max_epochs=5)
    for tolerance, layer in ((1e-6, iso.ExactIsotropyLayer(data.head)), (0.05, trained)):
        fits = (fit(layer, place) for place in ("cpu", device.type))
        reached = (isoscore(each.transform(data.X_test), bias_corrected=True) for each in fits)
        agree(f"{type(layer).__name__}, corrected IsoScore", *reached, tolerance)
    for adapter in (flow, iso.IsotropyLayer(data.head, **short)):
        name = f"{type(adapter).__name__}, 3 epochs, {device.type} against CPU"
        calls = (partial(fit, adapter, place) for place in (device.type, "cpu"))
        yield timed(name, calls, quick, data.X_train)


def search(device: torch.device, quick: bool) -> Part:
    """A search of 24 × 5 fits: its scores are those of single fits and of the CPU."""
    data, grid = _data(quick), SMALL if quick else GRID
    adapter = iso.IStarAdapter(data.head, max_epochs=5, random_state=0)

    def found(kind: type, place: str, grid: dict[str, list[float]]) -> tuple[Any, float]:
        searched = kind(adapter.set_params(device=place), grid, cv=5, refit=False)
        seconds = seconds_of(lambda: searched.fit(data.X_train, data.y_train))
        return searched.cv_results_["mean_test_score"], seconds

    few = {name: values[:1] for name, values in grid.items()}
    scores, seconds = found(AdapterSearchCV, device.type, grid)
    alone, of_five = found(GridSearchCV, device.type, few)
    name = f"AdapterSearchCV on {device.type}, {len(scores)} candidates × 5 folds, against the "
    name += "time of one candidate in GridSearchCV, scaled"
    sizes = {"n": len(data.y_train), "d": data.X_train.shape[1]}
    yield Comparison(name, (seconds,), (of_five * len(scores),), None if quick else 25.0, sizes)
    agree("AdapterSearchCV, scores on CPU", found(AdapterSearchCV, "cpu", few)[0], alone, 0.003)
    agree("AdapterSearchCV, scores one by one", alone, scores[:1], 0.003)


def encoder(device: torch.device, quick: bool) -> Part:
    """Vectors of texts, also with batches halved when memory runs out, and in bfloat16."""
    folder, texts = _checkpoint_and_texts(quick)
    on_cpu, there = (iso.TransformerEncoder(folder, device=place) for place in ("cpu", device))
    half = iso.TransformerEncoder(folder, device=device, dtype="bfloat16")
    expected, exact, found = (each.transform(texts) for each in (on_cpu, there, half))
    agree("TransformerEncoder", expected, exact, 1e-3)
    lengths = np.linalg.norm(exact, axis=1) * np.linalg.norm(found, axis=1)
    cosines = (exact * found).sum(axis=1) / lengths
    agree("bfloat16, mean cosine to float32", 1.0, cosines.mean(), 1e-3)
    print(f"bfloat16, lowest cosine to float32: {cosines.min():.4f}")
    if device.type == "cuda" and not quick:
        greedy = iso.TransformerEncoder(folder, device=device, batch_tokens=4_000_000)
        with _little_memory(extra=256 * 2**20):
            found = greedy.transform(texts)
        agree("TransformerEncoder short of memory, batches halved", expected, found, 1e-3)
    pairs = {"against CPU": (there, on_cpu), "in bfloat16, against float32": (half, there)}
    for title, both in pairs.items():
        calls = (partial(each.transform, texts) for each in both)
        yield timed(f"TransformerEncoder on {device.type} {title}", calls, quick, expected)


def readout(device: torch.device, quick: bool) -> Part:
    """A layer of a teacher on aligned states: its vectors are those of the CPU; against a pass."""
    folder, texts = _checkpoint_and_texts(quick)
    found = []
    for place in ("cpu", device):
        own = iso.TransformerEncoder(folder, pooling="readout", device=place)
        teacher = iso.TransformerEncoder(folder, pooling="mean", device=place)
        adapter = iso.TeacherReadout(ridge=0.01)
        model = iso.AdaptedEncoder(own, adapter, teacher, general=None).fit(texts)
        found.append(model.transform(texts))
    agree("TeacherReadout, aligned tokens", *found, 1e-2)
    plain = iso.TransformerEncoder(folder, device=device)
    calls = (partial(call, texts) for call in (model.transform_predict, plain.transform))
    name = "vectors and labels of one pass and a layer of the teacher, against the pass"
    yield timed(name, calls, quick, found[0])


def finetuning(device: torch.device, quick: bool) -> Part:
    """Fine-tuning: the share of a step that each penalty takes."""
    return penalty_share(device, *((1, 4, 16) if quick else (25, 32, 4096)))


PARTS = (encoder, search, readout, adapters, geometry, finetuning)


def _data(quick: bool) -> Embeddings:
    return narrow_cone(300, 16, seed=0) if quick else load_embeddings("cola")


def _checkpoint_and_texts(quick: bool) -> tuple[Path, list[str]]:
    """Return the folder in ISOADAPT_MODEL, else the stored checkpoint, and texts of few words."""
    rng, stored = np.random.default_rng(0), shared_folder() / "models" / "cola-minilm"
    lengths = rng.integers(4, 60, 40 if quick else 2000)
    texts = [" ".join(rng.choice(WORDS, length)) for length in lengths]
    return Path(os.environ.get("ISOADAPT_MODEL", stored)), texts


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
    options = parser.parse_args(arguments)
    if options.device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing to measure")
        return 0
    calls = (partial(part, options.device, options.quick) for part in PARTS)
    titles = (f"{part.__name__}: {part.__doc__}" for part in PARTS)
    return run_all(dict(zip(titles, calls, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
