"""Reading of texts and labels from data sets of the Hugging Face Hub."""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import reason, shortened
from isoadapt.datasets._matrices import checked_labels
from isoadapt.datasets._tables import Texts, label_column, text_columns

_GLUE = "nyu-mll/glue"
_MISSING = -1  # label of a row without one


def load_hub(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    split: str = "train",
    text: str | tuple[str, str] | list[str] | None = None,
    label: str | None = "label",
) -> tuple[Texts, NDArray[Any] | None]:
    """Read texts and labels from the Hugging Face Hub with the package ``datasets``.

    Data sets that were downloaded before are read from the cache of that package. No code that
    belongs to a data set is run.

    Parameters
    ----------
    path : str or path-like
        Name on the Hub such as "stanfordnlp/imdb", or "glue/mrpc" for a task of GLUE. Or a folder
        of Parquet, CSV or JSON files.
    name : str, default=None
        Configuration of the data set, if it has several.
    split : str, default="train"
        Name of the split, such as "train" or "validation".
    text : str or pair of str, default=None
        Column of the texts, or two columns for pairs of texts. None: the columns that hold
        strings, of which there must be one or two.
    label : str or None, default="label"
        Column of the labels. None: no labels are read. If the default column "label" does not
        exist, no labels are read either. Any other name must exist.

    Returns
    -------
    texts : list of str, or of 2-tuples of str
        The text or pair of each row.
    labels : ndarray of shape (n,), or None
        The labels: int64 for classes and integers, float64 for other numbers, str for strings.

    Raises
    ------
    ImportError
        If ``datasets`` is not installed.
    OSError
        If the data set cannot be downloaded or found, or if one of its files is damaged.
    ValueError
        If a column does not exist or the columns of the texts are ambiguous, if a label is
        missing, not finite or neither a number nor a string, or if the labels are hidden, as in
        the test sets of GLUE.

    Examples
    --------
    >>> from isoadapt.datasets import load_hub
    >>> texts, labels = load_hub("glue/mrpc", split="validation")  # doctest: +SKIP
    """
    rows = _load(os.fspath(path), name, split)
    where = f"{path!s}, split {split!r}"
    label = label_column(where, rows.column_names, label)
    columns = [rows[column][:] for column in _text_columns(rows, where, text, label)]
    texts: Texts = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    if label is None:
        return texts, None
    named = hasattr(rows.features[label], "names")  # a ClassLabel
    return texts, _labels(rows[label][:], where, named)


def _load(path: str, name: str | None, split: str) -> Any:
    datasets = import_optional("datasets", feature="load_hub", extra="data")
    if path.startswith("glue/") and name is None and not os.path.isdir(path):
        path, name = _GLUE, path.removeprefix("glue/")
    try:
        return datasets.load_dataset(path, name, split=split)
    except Exception as error:  # damaged files make their readers raise errors of many classes
        raise OSError(
            f"path={path!r}, name={name!r}, split={split!r} cannot be loaded "
            f"({reason(error.__cause__ or error)}); check the names and the connection"
        ) from error


def _text_columns(rows: Any, where: str, text: Any, label: str | None) -> list[str]:
    """Return the names of the one or two columns that hold the texts."""
    if text is None:
        strings = [
            name
            for name, feature in rows.features.items()
            if getattr(feature, "dtype", None) in ("string", "large_string") and name != label
        ]
        text = strings if len(strings) in (1, 2) else None
    return text_columns(where, rows.column_names, text)


def _labels(values: list[Any], where: str, named: bool) -> NDArray[Any]:
    """Check labels, numbers of classes if `named`, and convert them to int64, float64 or str."""
    for row, value in enumerate(values):
        if not isinstance(value, str | int | float):
            raise ValueError(
                f"{where} has the label {shortened(repr(value))} in row {row}, but labels must be "
                "numbers or strings: correct it, choose another column with label=, or pass "
                "label=None to read only the texts"
            )
    labels = np.asarray(values)
    if labels.dtype.kind == "f":
        return checked_labels(labels, where).astype(np.float64)
    if labels.dtype.kind in "iub":
        missing = int((labels == _MISSING).sum())
        if missing and (named or missing == len(labels)):
            raise ValueError(
                f"{where} has the label {_MISSING}, which means that the label is missing or "
                f"hidden, in {missing} of {len(labels)} rows; choose another split, drop these "
                "rows, or pass label=None to read only the texts"
            )
        return labels.astype(np.int64)
    return labels.astype(str)
