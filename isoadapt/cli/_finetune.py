"""Implementation of ``isoadapt finetune``."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, matthews_corrcoef, r2_score

from isoadapt import load_checkpoint
from isoadapt._utils.files import check_output_folder
from isoadapt._utils.messages import aligned_table
from isoadapt.cli._options import Console, Tables, WrongUsage, labelled_texts, read_settings
from isoadapt.finetune import finetune_text_classifier
from isoadapt.finetune._recipes import PENALTIES, PLACES
from isoadapt.metrics._points import main_figures

_TITLES = {
    "r2": "R²",
    "matthews": "Matthews",
    "isoscore": "IsoScore",
    "isoscore_corrected": "  corrected",
    "ev1": "EV1",
    "anisotropy1": "anisotropy_1",
}
_JOINING = ("lam", "balance", "where")
_TRAINING = (
    "epochs",
    "lr",
    "batch_size",
    "warmup",
    "weight_decay",
    "random_state",
    "device",
)


def finetune(
    model: str,
    tables: Tables,
    penalty: str | None,
    settings: Sequence[str],
    recipe: str | None,
    out: Path,
    overwrite: bool,
    console: Console,
) -> None:
    """Fine-tune and save a classifier, and print its figures on the dev table and its folder."""
    options = _make_options(penalty, recipe, settings)
    with console.notes():
        check_output_folder(out, overwrite, name="--out")
        named = tables.text, tables.label
        texts, labels = labelled_texts(tables.train, *named)
        dev = None if tables.dev is None else labelled_texts(tables.dev, *named)
        if dev is not None:
            if len(set(dev[0])) < 2:
                raise ValueError(
                    f"{tables.dev} holds only one distinct text, but evaluation needs at least two"
                )
            _check_known(dev[1], labels, tables)
        console.say(f"Fine-tuning {model} on {len(texts)} texts ...")
        start = time.perf_counter()
        finetune_text_classifier(
            model,
            texts,
            labels,
            out,
            max_length=tables.max_length,
            overwrite=overwrite,
            verbose=console.verbose,
            **options,
        )
    console.say(f"Fine-tuned in {time.perf_counter() - start:.0f} s.")
    figures = None if dev is None else _figures(out, dev, tables, console)
    lines = [f"Checkpoint: {out}"]
    if dev is not None and figures is not None:
        rows = [(_TITLES.get(name, name), f"{value:.4g}") for name, value in figures.items()]
        table = aligned_table(rows, at_least=(16, 9))
        lines = [f"On the {len(dev[0])} texts of {tables.dev}:", table, "", *lines]
    console.show("\n".join(lines), {"checkpoint": str(out), "dev": figures})


def _figures(
    out: Path, dev: tuple[Any, NDArray[Any]], tables: Tables, console: Console
) -> dict[str, float]:
    """Evaluate the saved checkpoint on the dev table."""
    try:
        with console.notes():
            return _evaluate(out, *dev, tables.max_length, console.verbose)
    except ValueError as error:
        raise ValueError(
            f"{out} holds the fine-tuned checkpoint, but it cannot be evaluated on "
            f"{tables.dev}: {error}"
        ) from error


def _make_options(
    penalty: str | None, recipe: str | None, settings: Sequence[str]
) -> dict[str, Any]:
    """Make the loss from its name, and separate its parameters from those of training."""
    if penalty is None:
        values = read_settings(settings, _TRAINING, "training without --penalty")
        return {"recipe": recipe, **values}
    method = PENALTIES[penalty]
    known = (*method.parameters, *_JOINING, *_TRAINING)
    values = read_settings(settings, known, f"training with {penalty}")
    _check_where(values.setdefault("where", method.where))
    loss = method.make(**{name: values.pop(name) for name in method.parameters if name in values})
    return {"penalty": loss, "recipe": recipe, **values}


def _check_where(where: Any) -> None:
    layers = where if isinstance(where, list | tuple) else [where]
    if where not in PLACES and not (layers and all(type(layer) is int for layer in layers)):
        raise WrongUsage(
            f"--where {where!r} is not valid; choose from {', '.join(PLACES)}, or give the numbers "
            "of layers, such as 1,6"
        )


def _evaluate(
    folder: Path, texts: Sequence[Any], labels: NDArray[Any], max_length: int, verbose: int
) -> dict[str, float]:
    """Return the task metrics of a checkpoint and the isotropy of its head input."""
    encoder, head = load_checkpoint(folder, verbose=verbose)
    limit = encoder.open().backbone.limit or max_length
    X = encoder.set_params(max_length=min(max_length, limit)).transform(texts)
    predicted = head.predict(X)
    if head.classes_ is None:
        task = {
            "correlation": float(np.corrcoef(labels, predicted)[0, 1]),
            "r2": r2_score(labels, predicted),
        }
    else:
        task = {
            "accuracy": accuracy_score(labels, predicted),
            "matthews": matthews_corrcoef(labels, predicted),
        }
    found = main_figures(X)
    names = ("isoscore", "isoscore_corrected", "ev1", "anisotropy1")
    return task | {name: found[name] for name in names}


def _check_known(found: NDArray[Any], known: NDArray[Any], tables: Tables) -> None:
    """Check that each class of the dev table occurs in training; any number may be a target."""
    if known.dtype.kind == "f" and found.dtype.kind in {"i", "f"}:
        return
    strange = sorted(set(found.tolist()) - set(known.tolist()), key=str)
    if strange:
        raise ValueError(
            f"{tables.dev} has the label {strange[0]!r}, which does not occur in {tables.train}: "
            "the model cannot learn it, so use two tables of the same task"
        )
