"""Implementation of ``isoadapt finetune``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, matthews_corrcoef, r2_score

from isoadapt import load_checkpoint
from isoadapt._utils.containers import as_indicator
from isoadapt._utils.messages import aligned_table
from isoadapt.cli._options import TITLES, Console, read_settings
from isoadapt.cli._sources import Texts
from isoadapt.finetune import finetune_text_classifier
from isoadapt.finetune._penalties import PENALTIES
from isoadapt.metrics._points import main_figures

_JOINING = ("lam", "balance", "where")
_OPTIMISER = ("epochs", "lr", "batch_size", "warmup", "weight_decay")
_TRAINING = (*_OPTIMISER, "class_weight", "random_state", "device")


def finetune(
    train: Texts,
    dev: Texts | None,
    model: str,
    max_length: int | None,
    penalty: str | None,
    settings: Sequence[str],
    out: Path,
    overwrite: bool,
    console: Console,
) -> None:
    """Fine-tune and save a classifier, and print its figures on the dev table and its folder."""
    options = _make_options(penalty, settings)
    if dev is not None:
        _check_dev(dev, train)
    console.say(f"Fine-tuning {model} on {len(train.rows)} texts ...")
    options |= {"max_length": max_length, "overwrite": overwrite, "verbose": console.verbose}
    finetune_text_classifier(model, train.rows, train.labels, out, **options)
    figures, lines = None, [f"Checkpoint: {out}"]
    if dev is not None:
        try:
            figures = _evaluate(out, dev, train.labels, max_length, console.verbose)
        except ValueError as error:
            raise ValueError(
                f"{out} holds the fine-tuned checkpoint, but it cannot be evaluated on "
                f"{dev.files[0]}: {error}"
            ) from error
        shown = [(TITLES.get(name, name), f"{value:.4g}") for name, value in figures.items()]
        table = aligned_table(shown, at_least=(16, 9))
        lines = [f"On the {len(dev.rows)} texts of {dev.files[0]}:", table, "", *lines]
    console.show("\n".join(lines), {"checkpoint": str(out), "dev": figures})


def _make_options(penalty: str | None, settings: Sequence[str]) -> dict[str, Any]:
    """Make the loss from its name, and separate its parameters from those of training."""
    if penalty is None:
        return read_settings(settings, _TRAINING, "training without --penalty")
    method = PENALTIES[penalty]
    known = (*method.parameters, *_JOINING, *_TRAINING)
    values = read_settings(settings, known, f"training with {penalty}")
    loss = method.make(**{name: values.pop(name) for name in method.parameters if name in values})
    return {"penalty": loss, "lam": method.lam, "where": method.where} | values


def _evaluate(
    folder: Path, dev: Texts, known: NDArray[Any], max_length: Any, verbose: int
) -> dict[str, float]:
    """Return the task metrics of a checkpoint and the isotropy of its head input."""
    labels = dev.labels
    encoder, head = load_checkpoint(folder, verbose=verbose, y=np.concatenate([known, labels]))
    limit = encoder.open().backbone.limit or max_length
    X = dev.vectors(encoder.set_params(max_length=min(max_length, limit)))
    predicted = head.predict(X)
    if head.classes_ is None:
        correlation = float(np.corrcoef(labels, predicted)[0, 1])
        task = {"correlation": correlation, "r2": r2_score(labels, predicted)}
    else:
        right = as_indicator(labels, head.classes_) if head.multi_label_ else labels
        task = {"accuracy": accuracy_score(right, predicted)}  # of all labels of a text
        task["matthews"] = matthews_corrcoef(np.ravel(right), np.ravel(predicted))
    found = main_figures(X)
    names = ("isoscore", "isoscore_corrected", "ev1", "anisotropy1")
    return task | {name: found[name] for name in names}


def _check_dev(dev: Texts, train: Texts) -> None:
    """Check that a dev table has texts to tell apart, and no class that training lacks."""
    (path,), known, labels = dev.files, np.ravel(train.labels), np.ravel(dev.labels)
    if len(set(dev.rows)) < 2:
        raise ValueError(f"{path} holds only one distinct text, but evaluation needs at least two")
    if known.dtype.kind == "f" and labels.dtype.kind in {"i", "f"}:
        return  # any number may be a target
    strange = sorted(set(labels.tolist()) - set(known.tolist()), key=str)
    if strange:
        raise ValueError(
            f"{path} has the label {strange[0]!r}, which does not occur in {train.files[0]}: the "
            "model cannot learn it, so use two tables of the same task"
        )
