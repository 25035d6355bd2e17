"""The demo: every adapter on one checkpoint and one set of texts, with its controls."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import (
    accuracy_score,
    log_loss,
    matthews_corrcoef,
    mean_squared_error,
    r2_score,
)
from sklearn.pipeline import make_pipeline

from isoadapt import (
    AllButTheTop,
    ClusterIsotropy,
    CosRegAdapter,
    FlowAdapter,
    IsoBN,
    IsotropyLayer,
    IStarAdapter,
    LinearHead,
    LogitPreservingWhitening,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
    TransformerEncoder,
    Whitening,
)
from isoadapt._utils.files import atomic_path
from isoadapt._utils.optional import import_optional
from isoadapt.geometry import spectrum
from isoadapt.heads import fit_head
from isoadapt.metrics import (
    cumulative_explained_variance,
    isoscore,
    mean_cosine_similarity,
)

BASE = "no adapter"
CONTROL = "same layer, no penalty"
LAYER = "IsotropyLayer, minibatch"


class Split(NamedTuple):
    """Embeddings and targets."""

    X: NDArray[Any]
    y: NDArray[Any]


class Row(NamedTuple):
    """One line of the table."""

    name: str
    task: dict[str, float]
    isoscore: float
    isoscore_corrected: float
    ev1: float
    mean_cosine: float
    seconds: float
    predictions: NDArray[Any]
    embeddings: NDArray[Any]
    adapter: Any


def compare(
    head: LinearHead, train: Split, dev: Split, announce: Callable[[str], None]
) -> list[Row]:
    """Fit every adapter on the training rows and judge it on the others.

    Parameters
    ----------
    head : LinearHead
        The checkpoint's own.
    train, dev : Split
        Rows to fit on and rows to judge on.
    announce : callable
        Told what is fitted next.

    Returns
    -------
    list of Row
        The base and the controls first.
    """
    rows = []
    for name, fit in _candidates(head):
        announce(name)
        start = time.perf_counter()
        model = fit(train)
        seconds = time.perf_counter() - start
        Z = model.transform(dev.X.astype(np.float64)) if hasattr(model, "transform") else dev.X
        rows.append(_judge(name, model, Z, dev, seconds))
    return rows


def _candidates(head: LinearHead) -> Iterator[tuple[str, Callable[[Split], Any]]]:
    probe = "ridge" if head.classes_ is None else "logistic"
    adapters = {
        CONTROL: IsotropyLayer(head, alpha=1.0, random_state=0),
        LAYER: IsotropyLayer(head, random_state=0),
        "IsotropyLayer, exact": IsotropyLayer(head, solver="exact"),
        "IStarAdapter": IStarAdapter(head, random_state=0),
        "CosRegAdapter": CosRegAdapter(head, random_state=0),
        "SpectrumControlAdapter": SpectrumControlAdapter(head, random_state=0),
        "TopologicalEntropyAdapter": TopologicalEntropyAdapter(head, random_state=0),
        "FlowAdapter + refit head": FlowAdapter(head, random_state=0),
        "IsoBN + refit head": IsoBN(head=head),
        "Whitening + refit head": Whitening(head=head),
        "AllButTheTop + refit head": AllButTheTop(head=head),
        "ClusterIsotropy + refit head": ClusterIsotropy(head=head, random_state=0),
        "LogitPreservingWhitening": LogitPreservingWhitening(head),
    }
    yield BASE, lambda train: head
    yield "head refit only", lambda train: fit_head(probe, train.X, train.y)
    for name, adapter in adapters.items():
        yield name, lambda train, adapter=adapter: adapter.fit(*train)  # type: ignore[misc]


def _judge(name: str, model: Any, Z: NDArray[Any], dev: Split, seconds: float) -> Row:
    predictions = model.predict(dev.X)
    if hasattr(model, "predict_proba"):
        probabilities = model.predict_proba(dev.X)
        task = {
            "accuracy": accuracy_score(dev.y, predictions),
            "Matthews": matthews_corrcoef(dev.y, predictions),
            "cross-entropy": log_loss(dev.y, probabilities, labels=_classes(model)),
        }
    else:
        task = {
            "R2": r2_score(dev.y, predictions),
            "correlation": np.corrcoef(dev.y, predictions)[0, 1],
            "MSE": mean_squared_error(dev.y, predictions),
        }
    return Row(
        name,
        {key: float(value) for key, value in task.items()},
        isoscore(Z),
        isoscore(Z, bias_corrected=True),
        cumulative_explained_variance(Z, k=1),
        mean_cosine_similarity(Z),
        seconds,
        predictions,
        Z,
        model,
    )


def _classes(model: Any) -> NDArray[Any]:
    return np.asarray(model.classes_)


def format_table(rows: list[Row]) -> str:
    """Lay the rows out as an aligned table.

    Parameters
    ----------
    rows : list of Row
        The rows.

    Returns
    -------
    str
        Text, one line for each row under a header.
    """
    header = ["", *rows[0].task, "IsoScore", "corrected", "EV1", "mean cosine", "fit s"]
    cells = [
        [
            row.name,
            *(f"{value:.4f}" for value in row.task.values()),
            f"{row.isoscore:.4f}",
            f"{row.isoscore_corrected:.4f}",
            f"{row.ev1:.4f}",
            f"{row.mean_cosine:.4f}",
            "-" if row.name == BASE else f"{row.seconds:.1f}",
        ]
        for row in rows
    ]
    widths = [max(len(line[i]) for line in [header, *cells]) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in [header, *cells]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def verdict(rows: list[Row], y: NDArray[Any]) -> str:
    """Say in one sentence what the table means.

    Parameters
    ----------
    rows : list of Row
        As :func:`compare` gives them.
    y : ndarray of shape (n,)
        Targets of the rows that judge.

    Returns
    -------
    str
        A sentence that credits isotropy only with what the control does not have.
    """
    table = {row.name: row for row in rows}
    base, control, layer = table[BASE], table[CONTROL], table[LAYER]
    metric = next(iter(layer.task))
    gain = layer.task[metric] - control.task[metric]
    error = _paired_error(control, layer, y)
    if abs(gain) <= 2 * error:
        meaning = f"within noise (± {2 * error:.4f}): no evidence that isotropy changes the task"
    else:
        effect = "helps" if gain > 0 else "costs"
        meaning = f"beyond noise (± {2 * error:.4f}): isotropy itself {effect} here"
    return (
        f"The Isotropy Layer took the corrected IsoScore from {base.isoscore_corrected:.4f} to "
        f"{layer.isoscore_corrected:.4f}; {gain:+.4f} {metric} against the same layer without "
        f"penalty is {meaning}."
    )


def _paired_error(first: Row, second: Row, y: NDArray[Any]) -> float:
    """Bootstrap standard error of the difference of the first metric."""
    rng = np.random.default_rng(0)
    metric = r2_score if "R2" in first.task else accuracy_score
    samples = rng.integers(len(y), size=(300, len(y)))
    return float(
        np.std(
            [
                metric(y[i], second.predictions[i]) - metric(y[i], first.predictions[i])
                for i in samples
            ]
        )
    )


def save_spectra(rows: list[Row], path: Path) -> None:
    """Draw the spectra of the embeddings before and after each adapter.

    Parameters
    ----------
    rows : list of Row
        As :func:`compare` gives them.
    path : Path
        The PNG to write.
    """
    matplotlib = import_optional("matplotlib", feature="The picture", extra="plot")
    figures = import_optional("matplotlib.figure", feature="The picture", extra="plot")
    figure = figures.Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_prop_cycle(color=matplotlib.color_sequences["tab20"])
    for row in rows:
        if row.name == "head refit only":  # the embeddings are those of the base
            continue
        variances = spectrum(torch.from_numpy(row.embeddings.astype(np.float64))).numpy()
        shares = variances / variances.sum()
        style = {"color": "black", "linewidth": 2.5} if row.name == BASE else {}
        axes.plot(np.arange(1, len(shares) + 1), shares.clip(1e-9), label=row.name, **style)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="principal direction",
        ylabel="share of variance",
        title="Spectra of held-out embeddings before and after",
        ylim=(1e-8, 1.5),
    )
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside right upper")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)


def save_pipeline(encoder: TransformerEncoder, rows: list[Row], path: Path) -> None:
    """Save the encoder and the fitted Isotropy Layer as one pipeline, without the weights.

    Parameters
    ----------
    encoder : TransformerEncoder
        Its model must be a folder or a name.
    rows : list of Row
        As :func:`compare` gives them.
    path : Path
        The joblib file to write.
    """
    layer = next(row.adapter for row in rows if row.name == LAYER)
    with atomic_path(path) as temporary:
        joblib.dump(make_pipeline(encoder, layer), temporary)
