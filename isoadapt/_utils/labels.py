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
        rows = values.tolist() if values.dtype.kind in "OUS" else []
        listed = any(np.size(row) > 1 or isinstance(row, list | set) for row in rows)
    except ValueError:  # lists of different lengths
        listed = True
    if listed:
        raise ValueError(
            "y has several labels in a row: pass an indicator matrix of 0 and 1 with one column "
            f"for each label, as {_BINARIZER}().fit_transform(y) makes from lists of labels"
        )
    return y


def as_indicator(y: ArrayLike, labels: NDArray[Any] | None = None) -> NDArray[np.int64]:
    """Return labels as an indicator matrix (n, n_labels), whose columns may be prescribed."""
    values = np.asarray(as_labels(y))
    values = values[:, None] if values.ndim == 1 else values
    fits = labels is None or values.shape[1:] == labels.shape
    if not fits or not np.isin(values, (0, 1)).all():
        names = "" if labels is None else f"classes={labels.tolist()}"
        raise ValueError(
            f"y has shape {np.shape(y)} and the values {np.unique(values)[:5].tolist()}, but must "
            "be an indicator matrix of 0 and 1 with one column for each label of the multi-label "
            f"head, as {_BINARIZER}({names}) makes from lists of labels; or fit another head"
        )
    return values.astype(np.int64)
