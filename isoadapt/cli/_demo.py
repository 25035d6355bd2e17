"""Implementation of ``isoadapt demo``: all adapters and two controls on one checkpoint."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import torch
import typer
from numpy.typing import NDArray
from sklearn.metrics import (
    accuracy_score,
    log_loss,
    matthews_corrcoef,
    mean_squared_error,
    r2_score,
)
from sklearn.pipeline import make_pipeline

from isoadapt import LinearHead, TransformerEncoder, load_checkpoint
from isoadapt._utils.files import atomic_path, writable_folder
from isoadapt._utils.folders import no_empty_leftovers
from isoadapt._utils.optional import import_optional
from isoadapt.adapters import VARIANTS, Variant
from isoadapt.cli._options import say
from isoadapt.datasets import load_table, make_acceptability, minilm_folder
from isoadapt.finetune import finetune_text_classifier
from isoadapt.geometry import spectrum
from isoadapt.heads import fit_head
from isoadapt.metrics import (
    cumulative_explained_variance,
    isoscore,
    mean_cosine_similarity,
)

_BASE = "no adapter"
_CONTROL = "same layer, no penalty"
_LAYER = "IsotropyLayer, minibatch"


class _Split(NamedTuple):
    """Embeddings and targets."""

    X: NDArray[Any]
    y: NDArray[Any]


class _Row(NamedTuple):
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


def demo(
    train: Path | None,
    dev: Path | None,
    text: list[str] | None,
    checkpoint: str | None,
    out: Path,
    overwrite: bool,
) -> None:
    """Fine-tune a checkpoint or use a given one, fit every adapter, and compare the results."""
    out = out.expanduser()
    with no_empty_leftovers(out):
        writable_folder(out)
        import_optional("matplotlib", feature="The plot", extra="plot")
        texts, labels, dev_texts, dev_labels = _read_tables(train, dev, text)
        if checkpoint is None:
            checkpoint = _fine_tune(texts, labels, out, overwrite)
        start = time.perf_counter()
        say(f"Encoding {len(texts)} + {len(dev_texts)} texts with {checkpoint} ...")
        encoder, head = load_checkpoint(checkpoint, verbose=1)
        rows = _compare(
            head,
            _Split(encoder.transform(texts), labels),
            _Split(encoder.transform(dev_texts), dev_labels),
            lambda name: say(f"Fitting: {name} ..."),
        )
        typer.echo(f"\nEvaluated on {len(dev_texts)} texts that no adapter was fitted to:\n")
        typer.echo(_format_table(rows))
        typer.echo(f"\n{_verdict(rows, dev_labels)}\n")
        _save_spectra(rows, out / "spectra.png")
        _save_pipeline(encoder.set_params(verbose=0), rows, out / "pipeline.joblib")
        say(f"Encoded, fitted and evaluated in {time.perf_counter() - start:.0f} s.")
        typer.echo(f"Spectra: {out / 'spectra.png'}   pipeline: {out / 'pipeline.joblib'}")


def _read_tables(
    train: Path | None, dev: Path | None, text: list[str] | None
) -> tuple[Any, Any, Any, Any]:
    """Read training and evaluation texts with labels, or generate a corpus without tables."""
    if (train is None) != (dev is None):
        raise ValueError("--train and --dev must be given together")
    if train is None or dev is None:
        corpus = make_acceptability(random_state=0)
        return corpus.train_texts, corpus.train_labels, corpus.dev_texts, corpus.dev_labels
    texts, labels = load_table(train, text=text)
    dev_texts, dev_labels = load_table(dev, text=text)
    for path, found in ((train, labels), (dev, dev_labels)):
        if found is None:
            raise ValueError(f"{path} has no column 'label', but the demo needs labels")
    if set(texts) & set(dev_texts):
        say(f"Note: {len(set(texts) & set(dev_texts))} texts are in both tables.")
    return texts, labels, dev_texts, dev_labels


def _fine_tune(texts: Any, labels: Any, out: Path, overwrite: bool) -> str:
    """Fine-tune all-MiniLM-L6-v2 and return the folder of the checkpoint."""
    start = time.perf_counter()
    say(f"Fine-tuning all-MiniLM-L6-v2 on {len(texts)} texts (one to three minutes on 2 cores) ...")
    folder = finetune_text_classifier(
        minilm_folder(),
        texts,
        labels,
        out / "checkpoint",
        lr=1e-4,
        random_state=0,
        overwrite=overwrite,
        verbose=1,
    )
    say(f"Fine-tuned in {time.perf_counter() - start:.0f} s.")
    return str(folder)


def _compare(
    head: LinearHead, train: _Split, dev: _Split, announce: Callable[[str], None]
) -> list[_Row]:
    """Fit every adapter on the training rows and evaluate it on the other rows."""
    rows = []
    for name, fit in _candidates(head):
        announce(name)
        start = time.perf_counter()
        model = fit(train)
        seconds = time.perf_counter() - start
        Z = model.transform(dev.X.astype(np.float64)) if hasattr(model, "transform") else dev.X
        rows.append(_evaluate(name, model, Z, dev, seconds))
    return rows


def _candidates(head: LinearHead) -> Iterator[tuple[str, Callable[[_Split], Any]]]:
    probe = "ridge" if head.classes_ is None else "logistic"
    control = Variant(_CONTROL, "IsotropyLayer", {"alpha": 1.0})
    yield _BASE, lambda train: head
    yield "head refit only", lambda train: fit_head(probe, train.X, train.y)
    for variant in (control, *(each for each in VARIANTS if each.brief)):
        adapter = variant.make(head)
        if "random_state" in adapter.get_params():
            adapter.set_params(random_state=0)
        yield variant.name, lambda train, adapter=adapter: adapter.fit(*train)  # type: ignore[misc]


def _evaluate(name: str, model: Any, Z: NDArray[Any], dev: _Split, seconds: float) -> _Row:
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
    return _Row(
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


def _format_table(rows: list[_Row]) -> str:
    """Format the rows as an aligned table."""
    header = ["", *rows[0].task, "IsoScore", "corrected", "EV1", "mean cosine", "fit s"]
    cells = [
        [
            row.name,
            *(f"{value:.4f}" for value in row.task.values()),
            f"{row.isoscore:.4f}",
            f"{row.isoscore_corrected:.4f}",
            f"{row.ev1:.4f}",
            f"{row.mean_cosine:.4f}",
            "-" if row.name == _BASE else f"{row.seconds:.1f}",
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


def _verdict(rows: list[_Row], y: NDArray[Any]) -> str:
    """Compare the Isotropy Layer with its control in one sentence."""
    table = {row.name: row for row in rows}
    base, control, layer = table[_BASE], table[_CONTROL], table[_LAYER]
    metric = next(iter(layer.task))
    gain = layer.task[metric] - control.task[metric]
    error = _paired_error(control, layer, y)
    if not (gain or error):
        meaning = "no prediction differs: no evidence that isotropy changes the task"
    elif abs(gain) <= 2 * error:
        meaning = f"within noise (± {2 * error:.4f}): no evidence that isotropy changes the task"
    else:
        effect = "helps" if gain > 0 else "costs"
        meaning = f"beyond noise (± {2 * error:.4f}): isotropy itself {effect} here"
    return (
        f"The Isotropy Layer took the corrected IsoScore from {base.isoscore_corrected:.4f} to "
        f"{layer.isoscore_corrected:.4f}; {gain:+.4f} {metric} against the same layer without "
        f"penalty is {meaning}."
    )


def _paired_error(first: _Row, second: _Row, y: NDArray[Any]) -> float:
    """Return the bootstrap standard error of the difference in the first metric."""
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


def _save_spectra(rows: list[_Row], path: Path) -> None:
    """Plot the spectra of the embeddings before and after each adapter."""
    matplotlib = import_optional("matplotlib", feature="The plot", extra="plot")
    figures = import_optional("matplotlib.figure", feature="The plot", extra="plot")
    figure = figures.Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_prop_cycle(color=matplotlib.color_sequences["tab20"])
    for row in rows:
        if row.name == "head refit only":  # its embeddings are those without an adapter
            continue
        variances = spectrum(torch.from_numpy(row.embeddings.astype(np.float64))).numpy()
        shares = variances / variances.sum()
        style = {"color": "black", "linewidth": 2.5} if row.name == _BASE else {}
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


def _save_pipeline(encoder: TransformerEncoder, rows: list[_Row], path: Path) -> None:
    """Save the encoder and the fitted Isotropy Layer as one pipeline, without the weights."""
    layer = next(row.adapter for row in rows if row.name == _LAYER)
    with atomic_path(path) as temporary:
        joblib.dump(make_pipeline(encoder, layer), temporary)
