"""Labels as a model for sequence classification wants them."""

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
        If the labels are neither integers nor floats nor strings.
    ValueError
        If they are too few or too many, not one-dimensional, not finite, of one class only or not
        0..C-1.
    """
    array = np.asarray(labels)
    if array.ndim != 1:
        raise ValueError(f"labels has shape {array.shape}; one label a text is needed, shape (n,)")
    if len(array) != n_texts:
        raise ValueError(
            f"texts has {n_texts} rows and labels {len(array)}; one label a text is needed"
        )
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array))[0])
            raise ValueError(
                f"labels[{row}] is {array[row]}; drop that row, numbers must be finite"
            )
        return Targets(torch.tensor(array, dtype=torch.float32), None)
    named = all(isinstance(label, str) for label in array.tolist())
    if array.dtype.kind not in "biu" and not named:
        odd = next(label for label in array.tolist() if not isinstance(label, str))
        raise TypeError(
            f"labels holds {odd!r} ({type(odd).__name__}) among others; integers 0..C-1, floats or "
            "strings are needed, all of one kind"
        )
    classes, numbers = np.unique(array.astype(str if named else np.int64), return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"labels holds one class only ({classes[0]}); at least two are needed")
    names = classes.tolist() if named else _numbered(classes)
    return Targets(torch.tensor(numbers), tuple(names), named)


def _numbered(classes: NDArray[np.int64]) -> list[str]:
    """Name the classes of integer labels as transformers does."""
    if not np.array_equal(classes, np.arange(len(classes))):
        shown = ", ".join(map(str, classes[:6])) + (", …" if len(classes) > 6 else "")
        raise ValueError(
            f"labels holds the integers {shown}; integer labels must be 0..C-1, each of them "
            "present: pass strings (class names), or np.unique(labels, return_inverse=True)[1]"
        )
    return [f"LABEL_{i}" for i in classes]
