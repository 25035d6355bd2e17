"""Conversion of torch and Hugging Face datasets into lists of texts and labels."""

from collections.abc import Iterable, Mapping, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset


def read_items(values: Any) -> Any:
    """Convert a torch Dataset to a list of its items, and tensors to arrays or numbers."""
    if isinstance(values, IterableDataset):
        values = list(values)
    elif isinstance(values, Dataset) and isinstance(values, Sized):
        values = [values[i] for i in range(len(values))]
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
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
