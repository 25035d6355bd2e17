"""Labels as a model for sequence classification wants them."""

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Targets:
    """What to learn: `values` are class numbers (int64) or, without `classes`, floats."""

    values: Tensor
    classes: tuple[str, ...] | None
    named: bool = False  # whether the labels were these names, not numbers

    def configure(self, config: Any) -> None:
        """Describe the labels in a model's configuration, in place of what it says of its own.

        Parameters
        ----------
        config : PreTrainedConfig
            The configuration, of a model for any task.
        """
        names = self.classes or ("LABEL_0",)
        config.num_labels = len(names)
        config.problem_type = "single_label_classification" if self.classes else "regression"
        config.id2label = dict(enumerate(names))
        config.label2id = {name: i for i, name in enumerate(names)}


def as_targets(labels: Any, n_texts: int) -> Targets:
    """Read labels.

    Parameters
    ----------
    labels : array-like of shape (n,)
        Integers 0..C-1 or strings: classes. Floats: numbers to be predicted.
    n_texts : int
        How many there must be.

    Returns
    -------
    Targets
        The labels; names of classes are sorted.

    Raises
    ------
    TypeError
        If the labels are neither integers nor floats nor strings, or some are strings and others
        are not.
    ValueError
        If they are too few or too many, not one-dimensional, masked, not finite in float32, of
        one class only or not 0..C-1.
    """
    array = _as_array(labels)
    if array.ndim != 1:
        raise ValueError(f"labels has shape {array.shape}; one label a text is needed, shape (n,)")
    if len(array) != n_texts:
        raise ValueError(
            f"texts has {n_texts} rows and labels {len(array)}; one label a text is needed"
        )
    _check_not_masked(labels)
    if array.dtype.kind == "f":
        return Targets(torch.tensor(_finite(array)), None)
    items = labels if isinstance(labels, list) else array.tolist()  # an array may have cast them
    named = all(isinstance(label, str) for label in items)
    if array.dtype.kind not in "biu" and not named:
        row = next(row for row, label in enumerate(items) if not isinstance(label, str))
        raise TypeError(
            f"labels[{row}] is {reprlib.repr(items[row])} ({type(items[row]).__name__}); integers "
            "0..C-1, floats or strings are needed, all of one kind: convert the labels, such as by "
            "[str(label) for label in labels], and drop the rows that have none"
        )
    classes, numbers = np.unique(array.astype(str if named else np.int64), return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"labels holds one class only ({classes[0]}); at least two are needed")
    names = classes.tolist() if named else _numbered(classes)
    return Targets(torch.tensor(numbers), tuple(names), named)


def _as_array(labels: Any) -> NDArray[Any]:
    """Give labels as an array; refuse a list whose items have different shapes."""
    try:
        return np.asarray(labels)
    except (TypeError, ValueError) as error:
        items = enumerate(labels if isinstance(labels, list) else [labels])
        nested = (
            f"labels[{row}] is {reprlib.repr(item)}"
            for row, item in items
            if isinstance(item, Iterable) and not isinstance(item, str)
        )
        raise ValueError(
            f"{next(nested, 'labels cannot be read as an array')}; one label a text is needed, "
            "shape (n,), each an integer, a float or a string"
        ) from error


def _check_not_masked(labels: Any) -> None:
    """Refuse masked labels, whose masks a tensor would not have."""
    if np.ma.is_masked(labels):
        rows = np.flatnonzero(np.ma.getmaskarray(labels))
        raise ValueError(
            f"labels[{rows[0]}] is masked, as are {len(rows)} of {len(labels)} labels; drop those "
            "rows: pass the texts where labels.mask is false, and labels.compressed()"
        )


def _finite(array: NDArray[Any]) -> NDArray[np.float32]:
    """Give floats in single precision, in which models are trained; refuse infinite ones."""
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    rows = np.flatnonzero(~np.isfinite(values))
    if not len(rows):
        return values
    shown = f"labels[{rows[0]}] is {array[rows[0]]}"
    if np.isfinite(array[rows[0]]):
        raise ValueError(
            f"{shown}, beyond the range of float32, in which models are trained: scale the labels, "
            "such as by sklearn.preprocessing.StandardScaler"
        )
    raise ValueError(f"{shown}; drop that row, numbers must be finite")


def _numbered(classes: NDArray[np.int64]) -> list[str]:
    """Name the classes of integer labels as transformers does."""
    if not np.array_equal(classes, np.arange(len(classes))):
        shown = ", ".join(map(str, classes[:6])) + (", …" if len(classes) > 6 else "")
        raise ValueError(
            f"labels holds the integers {shown}; integer labels must be 0..C-1, each of them "
            "present: pass strings (class names), or np.unique(labels, return_inverse=True)[1]"
        )
    return [f"LABEL_{i}" for i in classes]
