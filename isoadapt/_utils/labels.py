"""Labels of classifiers: one for each row, or several as an indicator matrix."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from isoadapt._utils.devices import as_array

_BINARIZER = "sklearn.preprocessing.MultiLabelBinarizer"


def as_labels(y: Any) -> Any:
    """Make a tensor or a sparse indicator matrix a dense array; refuse lists of labels as rows."""
    y = as_array(y)
    if issparse(y):
        return y.toarray()
    try:
        values = np.asarray(y)
        of_texts = values.ndim == 2 and values.shape[1] > 1 and values.dtype.kind in "OUST"
        objects = values.tolist() if values.ndim == 1 and values.dtype.kind == "O" else []
        listed = of_texts or any(
            isinstance(each, list | tuple | set | np.ndarray) for each in objects
        )
    except ValueError:  # the lists differ in length
        listed = True
    if listed:
        raise ValueError(
            "y has several labels in a row: pass an indicator matrix of 0 and 1 with one column "
            f"for each label, as {_BINARIZER}().fit_transform(y) makes from lists of labels"
        )
    return y


def as_indicator(y: ArrayLike, labels: ArrayLike | None = None) -> NDArray[np.int64]:
    """Return labels as an indicator matrix (n, n_labels), whose columns may be given."""
    values = np.asarray(as_labels(y))
    values = values[:, None] if values.ndim == 1 else values
    names = None if labels is None else np.asarray(labels).tolist()
    fits = values.ndim == 2 and values.shape[1] == (
        values.shape[1] if names is None else len(names)
    )
    if not fits or not np.isin(values, (0, 1)).all():
        shown = "" if names is None else f"(classes={names})"
        wanted = "" if names is None else f", the labels {names} in this order"
        raise ValueError(
            f"y has shape {np.shape(y)} and the values {np.unique(values)[:5].tolist()}, but a "
            "multi-label head needs an indicator matrix of 0 and 1 with one column for each "
            f"label{wanted}: {_BINARIZER}{shown} makes one from lists of labels"
        )
    return values.astype(np.int64)
