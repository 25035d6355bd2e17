"""Conversion of containers of texts and labels, and of labels into the targets of a model."""

import reprlib
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from isoadapt._utils.containers import as_array
from isoadapt._utils.messages import warn
from isoadapt.encoders._class_labels import class_labels


@dataclass(frozen=True)
class Targets:
    """Labels as a tensor (n,): indices of classes, or floats (float32) for a regression."""

    values: Tensor
    classes: tuple[str, ...] | None  # names of the classes; None for a regression

    def configure(self, config: Any) -> None:
        """Replace the description of the labels in the configuration of a model.

        If the names are all those of its classes, in any spelling, these keep their ids.
        """
        names = list(self.classes or ("LABEL_0",))
        known = class_labels(config, len(names), names)
        names = known if {*known} == {*names} else names
        config.num_labels = len(names)
        config.problem_type = "single_label_classification" if self.classes else "regression"
        config.id2label = dict(enumerate(names))
        config.label2id = {name: i for i, name in enumerate(names)}

    def ids(self, config: Any) -> list[Any]:
        """Return the ids of the classes in a configuration, or the values of a regression."""
        if self.classes is None:
            return self.values.tolist()
        return [config.label2id[self.classes[i]] for i in self.values.tolist()]


def as_targets(labels: Any, n_texts: int) -> Targets:
    """Check and convert labels: integers and strings are classes, floats are values."""
    try:
        array = np.asarray(labels)
    except (TypeError, ValueError) as error:  # items of different shapes
        raise ValueError(f"labels: {error}; pass one label per text, shape (n,)") from error
    if array.ndim != 1:
        raise ValueError(f"labels has shape {array.shape}; pass one label per text, shape (n,)")
    if len(array) != n_texts:
        raise ValueError(
            f"texts has {n_texts} rows and labels {len(array)}; pass one label per text"
        )
    if array.dtype.kind == "f":
        values = _finite(array)
        if len(two := np.unique(values)) != 2 or (two % 1).any():
            return Targets(torch.tensor(values), None)
        warn(
            f"labels are the floats {two[0]} and {two[1]}, which are taken as two classes; for a "
            "regression, scale them: labels / 10"
        )
        array = array.astype(np.int64)
    items = labels if isinstance(labels, list) else array.tolist()  # the array may have cast a list
    named = all(isinstance(label, str) for label in items)
    if array.dtype.kind not in "biu" and not named:
        row = next(row for row, label in enumerate(items) if not isinstance(label, str))
        raise TypeError(
            f"labels[{row}] is {reprlib.repr(items[row])} ({type(items[row]).__name__}); labels "
            "must be integers, floats or strings, all of one kind: convert them, for "
            "example with [str(label) for label in labels], and drop rows without a label"
        )
    classes, numbers = np.unique(array.astype(str if named else np.int64), return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"labels holds one class only ({classes[0]}); pass texts of at least two classes"
        )
    names = classes.tolist() if named else _numbered(classes)
    return Targets(torch.tensor(numbers), tuple(names))


def _finite(array: NDArray[Any]) -> NDArray[np.float32]:
    """Cast labels to float32, the precision of training; raise if one is not finite in it."""
    with np.errstate(over="ignore"):
        values = array.astype(np.float32)
    rows = np.flatnonzero(~np.isfinite(values))
    if len(rows):
        raise ValueError(
            f"labels[{rows[0]}] is {array[rows[0]]}, which is not a finite float32 number: drop "
            "this row, or scale the labels"
        )
    return values


def _numbered(classes: NDArray[np.int64]) -> list[str]:
    """Name the classes of integer labels: "LABEL_0" and so on if they are ids, else as they are."""
    if classes[0] < 0:
        raise ValueError(
            f"labels holds {classes[0]}, which often means a missing label: drop these rows, or "
            "pass the names of the classes as strings"
        )
    ids = np.array_equal(classes, np.arange(len(classes)))
    return [f"LABEL_{i}" if ids else str(i) for i in classes]


def read_items(values: Any) -> Any:
    """Convert a torch Dataset to a list of its items, and tensors to arrays or numbers."""
    if isinstance(values, IterableDataset):
        values = list(values)
    elif isinstance(values, Dataset) and isinstance(values, Sized):
        values = [values[i] for i in range(len(values))]
    values = as_array(values)
    if isinstance(values, list | tuple):
        return [item.item() if _is_number(item) else item for item in values]
    return values


def check_has_no_columns(texts: Any) -> None:
    """Raise if the items are rows with several columns, such as ``{"text": ..., "label": ...}``."""
    first = next(iter(texts), None) if isinstance(texts, Iterable) else None
    if isinstance(first, Mapping):
        column = next((name for name, value in first.items() if isinstance(value, str)), "text")
        raise TypeError(
            f"texts holds rows with the columns {', '.join(map(repr, first))}, but it must hold "
            f"only texts: pass [row[{column!r}] for row in texts], or pairs of two columns"
        )


def _is_number(item: Any) -> bool:
    return isinstance(item, Tensor) and item.numel() == 1
