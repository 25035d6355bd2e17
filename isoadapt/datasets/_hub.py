"""Reading of texts and labels from data sets of the Hugging Face Hub."""

import os
from typing import Any

from numpy.typing import NDArray

from isoadapt._utils.imports import import_optional
from isoadapt.datasets._tables import Texts, label_columns, text_columns, texts_and_labels

_MISSING = -1  # label of a row without one


def load_hub(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    split: str = "train",
    text: str | tuple[str, str] | list[str] | None = None,
    label: str | None = "label",
) -> tuple[Texts, NDArray[Any] | None]:
    """Read texts and labels from the Hugging Face Hub, or its cache, with the package ``datasets``.

    Parameters
    ----------
    path : str or path-like
        Name on the Hub such as "stanfordnlp/imdb", or "glue/mrpc" for a task of GLUE. Or a folder
        of Parquet, CSV or JSON files. No code that belongs to a data set is run.
    name : str, default=None
        Configuration of the data set, if it has several.
    split : str, default="train"
        Name of the split, such as "train" or "validation".
    text : str or pair of str, default=None
        Column of the texts, or two columns for pairs of texts. None: the one or two columns that
        hold strings.
    label : str or None, default="label"
        Column of the labels, as for :func:`load_table`.

    Returns
    -------
    texts : list of str, or of 2-tuples of str
        The text or pair of each row.
    labels : ndarray of shape (n,), or None
        The labels, as :func:`load_table` gives them; int64 for named classes.

    Raises
    ------
    ImportError
        If ``datasets`` is not installed.
    OSError
        If the data set cannot be downloaded or found.
    ValueError
        As for :func:`load_table`, if there is no such split, or if the labels are hidden.

    Examples
    --------
    >>> from isoadapt.datasets import load_hub
    >>> texts, labels = load_hub("glue/mrpc", split="validation")  # doctest: +SKIP
    """
    datasets, source = import_optional("datasets", feature="load_hub", extra="data"), str(path)
    if source.startswith("glue/") and name is None and not os.path.isdir(path):
        source, name = "nyu-mll/glue", source.removeprefix("glue/")
    rows = datasets.load_dataset(source, name, split=split)
    where, columns = f"{path!s}, split {split!r}", rows.column_names
    own = label_columns(where, columns, label)
    kinds = {column: getattr(kind, "dtype", None) for column, kind in rows.features.items()}
    strings = [each for each in columns if "string" in str(kinds[each]) and each not in own]
    names = text_columns(where, columns, text, strings)
    chosen = dict.fromkeys([*names, *own])
    table = rows.select_columns([*chosen]).to_pandas()
    texts, labels = texts_and_labels(where, table, names, own)
    missing = 0 if labels is None else int((labels == _MISSING).sum())
    if missing and (missing == len(texts) or hasattr(rows.features[own[0]], "names")):
        raise ValueError(
            f"{where} has the label {_MISSING}, of a missing or hidden label, in {missing} of "
            f"{len(texts)} rows; choose another split, drop these rows, or pass label=None"
        )
    return texts, labels
