"""Conversion of containers of texts and labels, and of labels into the targets of a model."""

import reprlib
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, IterableDataset

from isoadapt._utils.containers import as_array, as_indicator, table_columns
from isoadapt._utils.messages import listed, warn
from isoadapt._utils.sklearn_private import InvalidParameterError
from isoadapt.encoders._class_labels import class_labels


@dataclass(frozen=True)
class Targets:
    """Labels as a tensor (n,), indices of classes or floats, or (n, k), an indicator matrix."""

    values: Tensor
    classes: tuple[str, ...] | None  # names of the classes; None for a regression
    given: NDArray[Any] | None = None  # what stood for each class, if each text has one

    def configure(self, config: Any) -> None:
        """Describe the labels in a configuration; if they are its classes, these keep their ids."""
        names = list(self.classes or ("LABEL_0",))
        known = class_labels(config, len(names), names)
        names = known if {*known} == {*names} else names
        config.num_labels = len(names)
        kind = "single" if self.values.ndim == 1 else "multi"
        config.problem_type = f"{kind}_label_classification" if self.classes else "regression"
        config.id2label = dict(enumerate(names))
        config.label2id = {name: i for i, name in enumerate(names)}

    def ids(self, config: Any) -> list[Any]:
        """Return the ids of the classes in a configuration, columns in its order, or values."""
        if self.classes is None:
            return self.values.tolist()
        ids = torch.tensor([config.label2id[name] for name in self.classes])
        matrix = self.values.ndim == 2
        return (self.values[:, ids.argsort()] if matrix else ids[self.values]).tolist()

    def weighted_loss(self, class_weight: Any, config: Any) -> Any:
        """Return the cross-entropy with weights of the classes; None is the loss of the model."""
        if class_weight is None:
            return None
        if self.given is None or self.classes is None:
            raise InvalidParameterError(
                f"class_weight={class_weight!r} needs labels that are one class for each text: "
                "leave it out, or give IsotropyTrainer a loss of your own as compute_loss_func"
            )
        known, given = self.given.tolist(), {} if class_weight == "balanced" else class_weight
        numbers = [
            each for each in given.values() if isinstance(each, Real) and 0 < float(each) < np.inf
        ]
        if len(numbers) < len(given) or not given.keys() <= set(known):
            raise InvalidParameterError(
                f"class_weight={class_weight!r} must be 'balanced', or a dict of positive numbers "
                f"for classes of the labels, which are {listed(known)}"
            )
        order = [self.classes.index(name) for name in config.id2label.values()]
        classes, y = self.given[order], self.given[self.values.numpy()]
        weight = torch.tensor(compute_class_weight(class_weight, classes=classes, y=y)).float()
        return lambda outputs, labels, **_: cross_entropy(
            outputs.logits, labels, weight.to(labels.device)
        )


def as_targets(labels: Any, n_texts: int) -> Targets:
    """Check and convert labels: integers and strings are classes, floats values, or a matrix."""
    try:
        array = np.asarray(labels.toarray() if issparse(labels) else labels)
    except (TypeError, ValueError) as error:  # items of different shapes
        raise ValueError(
            f"labels: {error}; pass one label per text, or the matrix of MultiLabelBinarizer"
        ) from error
    several = array.ndim == 2 and array.shape[1] > 1
    if array.ndim != 1 and not several:
        raise ValueError(f"labels has shape {array.shape}; pass one label per text, shape (n,)")
    if len(array) != n_texts:
        raise ValueError(
            f"texts has {n_texts} rows and labels {len(array)}; pass one label per text"
        )
    if several:
        table = table_columns(labels, "labels")
        names = table[0] if table else [f"LABEL_{i}" for i in range(array.shape[1])]
        return Targets(torch.tensor(as_indicator(labels, name="labels")).float(), tuple(names))
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
    return Targets(torch.tensor(numbers), tuple(names), classes)


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
        return [
            item.item() if isinstance(item, Tensor) and item.numel() == 1 else item
            for item in values
        ]
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
