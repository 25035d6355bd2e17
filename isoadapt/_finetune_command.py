"""What ``isoadapt finetune`` does."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, matthews_corrcoef, r2_score

from isoadapt._commands import Say, notes
from isoadapt._settings import read_settings
from isoadapt._utils.folders import reserved_folder
from isoadapt.finetune import METHODS, PLACES, RECIPES, finetune_text_classifier

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


class Tables(NamedTuple):
    """Where the texts come from.

    Attributes
    ----------
    train : Path
        The table to train on.
    dev : Path or None
        The table to judge on.
    text : list of str or None
        Columns of the texts, one or two; None finds them by name.
    label : str or None
        Column of the labels; None is "label".
    max_length : int
        Tokens a text is cut to.
    """

    train: Path
    dev: Path | None
    text: list[str] | None
    label: str | None
    max_length: int


def finetune(
    model: str,
    tables: Tables,
    penalty: str | None,
    settings: Sequence[str],
    recipe: str | None,
    out: Path,
    overwrite: bool,
    say: Say,
) -> str:
    """Fine-tune a classifier and save it.

    Parameters
    ----------
    model : str
        Folder or name.
    tables : Tables
        The texts.
    penalty : str or None
        Name of the method.
    settings : sequence of str
        Parameters of the penalty and of the training, ``name=value``.
    recipe : str or None
        Number of the paper.
    out : Path
        The folder.
    overwrite : bool
        Whether a checkpoint there may be replaced.
    say : callable
        Takes notes on the way.

    Returns
    -------
    str
        Figures on the table to judge on, if there is one, and the folder.
    """
    options = make_options(penalty, recipe, settings)
    with reserved_folder(out, overwrite, name="--out"):
        texts, labels = _read(tables.train, tables)
        dev = None if tables.dev is None else _read(tables.dev, tables)
        if dev is not None:
            if len(set(dev[0])) < 2:
                raise ValueError(f"{tables.dev} holds one text only; two are needed to judge on")
            _check_known(dev[1], labels, tables)
        say(f"Fine-tuning {model} on {len(texts)} texts{_described(penalty, recipe, settings)} ...")
        start = time.perf_counter()
        finetune_text_classifier(
            model,
            texts,
            labels,
            out,
            max_length=tables.max_length,
            overwrite=overwrite,
            verbose=1,
            **options,
        )
    say(f"Fine-tuned in {time.perf_counter() - start:.0f} s.")
    judged = ""
    if dev is not None:
        try:
            with notes(say):
                figures = judge(out, *dev, tables.max_length)
        except ValueError as error:
            raise ValueError(
                f"{out} holds the fine-tuned checkpoint, but it cannot be judged on {tables.dev}: "
                f"{error}"
            ) from error
        lines = [f"{name:16}{value:>10.4f}" for name, value in figures.items()]
        judged = "\n".join([f"On the {len(dev[0])} texts of {tables.dev}:", *lines, "", ""])
    return f"{judged}Checkpoint: {out}"


def make_options(
    penalty: str | None, recipe: str | None, settings: Sequence[str]
) -> dict[str, Any]:
    """Make the loss from its name, and sort its parameters from those of the training.

    Parameters
    ----------
    penalty : str or None
        Name of the method.
    recipe : str or None
        Number of the paper.
    settings : sequence of str
        ``name=value``.

    Returns
    -------
    dict of str to object
        Arguments of :func:`~isoadapt.finetune.finetune_text_classifier`.

    Raises
    ------
    ValueError
        If there is no such method or recipe, or a parameter is unknown or not admissible.
    """
    if recipe is not None and recipe not in RECIPES:
        raise ValueError(f"--recipe {recipe!r} is none; choose from {', '.join(RECIPES)}")
    if penalty is None:
        _refuse_without_penalty(settings)
        values = read_settings(settings, _TRAINING, "training without a penalty")
        _check_booleans(values, {})
        return {"recipe": recipe, **values}
    if penalty not in METHODS:
        raise ValueError(f"--penalty {penalty!r} is none; choose from {', '.join(METHODS)}")
    method = METHODS[penalty]
    known = (*method.parameters, *_JOINING, *_TRAINING)
    values = read_settings(settings, known, f"training with {penalty}")
    _check_where(values.setdefault("where", method.where))
    _check_booleans(values, method.parameters)
    loss = method.loss(**{name: values.pop(name) for name in method.parameters if name in values})
    return {"penalty": loss, "recipe": recipe, **values}


def _refuse_without_penalty(settings: Sequence[str]) -> None:
    of_penalties = {*_JOINING, *(name for each in METHODS.values() for name in each.parameters)}
    for setting in settings:
        if setting.partition("=")[0].strip() in of_penalties:
            raise ValueError(
                f"{setting} needs --penalty: choose from {', '.join(METHODS)}, or leave it out"
            )


def _check_where(where: Any) -> None:
    layers = where if isinstance(where, list | tuple) else [where]
    if where not in PLACES and not (layers and all(type(layer) is int for layer in layers)):
        raise ValueError(
            f"--where {where!r} is none; choose from {', '.join(PLACES)}, or name layers: 1,6"
        )


def _check_booleans(values: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Check that true and false are given only where the default is one of them."""
    for name, value in values.items():
        if isinstance(value, bool) and not isinstance(defaults.get(name), bool):
            raise ValueError(f"--set {name}={value}: {name} is not a matter of true or false")


def judge(
    folder: Path, texts: Sequence[Any], labels: NDArray[Any], max_length: int
) -> dict[str, float]:
    """Measure a checkpoint: the task's metrics, and the isotropy of what enters its head.

    Parameters
    ----------
    folder : Path
        The checkpoint.
    texts : sequence of str or of pairs of str
        The texts.
    labels : ndarray of shape (n,)
        Their labels.
    max_length : int
        Tokens a text is cut to.

    Returns
    -------
    dict of str to float
        Figures by name.
    """
    from isoadapt import load_checkpoint
    from isoadapt.metrics import isotropy_report

    encoder, head = load_checkpoint(folder, verbose=1)
    limit = encoder._backbone().limit or max_length
    X = encoder.set_params(max_length=min(max_length, limit)).transform(texts)
    predicted = head.predict(X)
    if head.classes_ is None:
        task = {
            "correlation": float(np.corrcoef(labels, predicted)[0, 1]),
            "R²": r2_score(labels, predicted),
        }
    else:
        task = {
            "accuracy": accuracy_score(labels, predicted),
            "Matthews": matthews_corrcoef(labels, predicted),
        }
    report = isotropy_report(X)
    return {
        **task,
        "IsoScore": report.isoscore,
        "  corrected": report.isoscore_corrected,
        "EV1": report.ev1,
        "anisotropy_1": report.anisotropy1,
    }


def _read(path: Path, tables: Tables) -> tuple[Any, NDArray[Any]]:
    from isoadapt.datasets import load_table

    texts, labels = load_table(path, text=tables.text, label=tables.label or "label")
    if labels is None:
        raise ValueError(f"{path} has no column 'label': name the labels' column with --label")
    return texts, labels


def _check_known(found: NDArray[Any], known: NDArray[Any], tables: Tables) -> None:
    """Check that the labels to judge on are of those trained on; numbers need only be numbers."""
    if known.dtype.kind == "f" and found.dtype.kind in {"i", "f"}:
        return
    strange = sorted(set(found.tolist()) - set(known.tolist()), key=str)
    if strange:
        raise ValueError(
            f"{tables.dev} has the label {strange[0]!r}, which {tables.train} has not; the model "
            "cannot learn it: give tables of one task"
        )


def _described(penalty: str | None, recipe: str | None, settings: Sequence[str]) -> str:
    parts = [
        *([f"penalty {penalty}"] if penalty else []),
        *([f"recipe {recipe}"] if recipe else []),
        *settings,
    ]
    return f" ({', '.join(parts)})" if parts else ""
