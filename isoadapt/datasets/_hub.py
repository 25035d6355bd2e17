"""Texts and labels from a data set of the Hugging Face Hub."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt._utils.errors import reason
from isoadapt._utils.optional import import_optional
from isoadapt.datasets._parquet import listed, shortened
from isoadapt.datasets._tables import Texts

_GLUE = "nyu-mll/glue"


def load_hub(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    split: str = "train",
    text: str | tuple[str, str] | list[str] | None = None,
    label: str | None = "label",
) -> tuple[Texts, NDArray[Any] | None]:
    """Read texts and labels from the Hugging Face Hub, by the package ``datasets``.

    What has been downloaded once is read from its cache. Nothing that comes with a data set is
    run.

    Parameters
    ----------
    path : str or path-like
        Name on the Hub such as "stanfordnlp/imdb", or "glue/mrpc" for a task of GLUE; or a folder
        of Parquet, CSV or JSON files.
    name : str, default=None
        Configuration of the data set, where it has several.
    split : str, default="train"
        "train", "validation" and so on.
    text : str or pair of str, default=None
        Column of the texts, or the two columns of pairs. None: the columns that hold strings, of
        which there must be one or two.
    label : str or None, default="label"
        Column of the labels. A data set without a column "label" is read as one without labels;
        any other name must be there. None: no labels are read.

    Returns
    -------
    texts : list of str, or of 2-tuples of str
        One for each row.
    labels : ndarray of shape (n,), or None
        Of int64 for classes and integers, float64 for numbers, else str.

    Raises
    ------
    ImportError
        If ``datasets`` is not installed.
    OSError
        If the data set cannot be had, or a file of it is damaged.
    ValueError
        If a column is missing or cannot be told, if a label is missing, not finite or neither a
        number nor a string, or if the labels are hidden, as in GLUE's test sets.

    Examples
    --------
    >>> from isoadapt.datasets import load_hub
    >>> texts, labels = load_hub("glue/mrpc", split="validation")  # doctest: +SKIP
    """
    rows = _load(os.fspath(path), name, split)
    where = f"{path!s}, split {split!r}"
    if label is not None and label not in rows.column_names:
        if label != "label":
            raise ValueError(
                f"label={label!r} is no column of {where}; it has {listed(rows.column_names)}"
            )
        label = None
    columns = [rows[column][:] for column in _text_columns(rows, where, text, label)]
    texts: Texts = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    return texts, None if label is None else _labels(rows[label][:], where)


def _load(path: str, name: str | None, split: str) -> Any:
    datasets = import_optional("datasets", feature="load_hub", extra="data")
    if path.startswith("glue/") and name is None and not os.path.isdir(path):
        path, name = _GLUE, path.removeprefix("glue/")
    try:
        with _quiet(datasets):
            return datasets.load_dataset(path, name, split=split)
    except Exception as error:  # what a file holds decides which errors its readers raise
        raise OSError(
            f"path={path!r}, name={name!r}, split={split!r} cannot be had "
            f"({reason(error.__cause__ or error)}); check the names and the connection"
        ) from error


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Show the package's progress bars on a terminal only."""
    hidden = not sys.stderr.isatty() and not datasets.are_progress_bars_disabled()
    if hidden:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if hidden:
            datasets.enable_progress_bars()


def _text_columns(rows: Any, where: str, text: Any, label: str | None) -> list[str]:
    if text is None:
        strings = [
            name
            for name, feature in rows.features.items()
            if getattr(feature, "dtype", None) in ("string", "large_string") and name != label
        ]
        if len(strings) in (1, 2):
            return strings
        raise ValueError(
            f"{where} has the columns {listed(rows.column_names)}; which hold the texts? Pass "
            "text=, one name or two for pairs"
        )
    names = [text] if isinstance(text, str) else list(text)
    if len(names) not in (1, 2) or not set(names) <= set(rows.column_names):
        raise ValueError(
            f"text={text!r} must name one column of {where}, or two for pairs; it has "
            f"{listed(rows.column_names)}"
        )
    return names


def _labels(values: list[Any], where: str) -> NDArray[Any]:
    for row, value in enumerate(values):
        if not isinstance(value, str | int | float):
            raise ValueError(
                f"{where} has the label {shortened(repr(value))} in row {row}; labels are numbers "
                "or strings: fill it in, name another column, or pass label=None for the texts "
                "alone"
            )
    labels = np.asarray(values)
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            row = int(np.flatnonzero(~np.isfinite(labels))[0])
            raise ValueError(f"{where} has the label {labels[row]} in row {row}: drop that row")
        return labels.astype(np.float64)
    if labels.dtype.kind in "iub":
        if (labels < 0).any():
            raise ValueError(
                f"{where} has the label {labels.min()}: its labels are hidden; take another split, "
                "or label=None for the texts alone"
            )
        return labels.astype(np.int64)
    return labels.astype(str)
