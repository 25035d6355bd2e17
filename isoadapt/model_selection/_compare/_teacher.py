"""The teacher of a comparison: its vectors as further columns of all rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from isoadapt._utils.containers import as_matrix
from isoadapt.adapters._heads import needs_fit
from isoadapt.heads import LinearHead
from isoadapt.model_selection._compare._data import are_texts


def with_teacher(
    sets: Mapping[str, Any], teacher: Any, encoder: Any, head: Any
) -> tuple[dict[str, Any], tuple[int, int]]:
    """Append the teacher's vectors to the sets; return the widths of the head's input and of X."""
    if needs_fit(head):
        raise ValueError(
            f"teacher was given with head={head!r}: pass the classifier's head, which tells the "
            "columns of X that it reads"
        )
    d = LinearHead.from_estimator(head).n_features_in_
    found, width = dict(sets), 0
    for name, value in sets.items():
        if value is None:
            continue
        parts = list(value[:2]) if name == "pairs" else [value]
        rows, targets = _embedded(name, parts, teacher, encoder)
        if (width := rows.shape[1]) < d:
            raise ValueError(f"{name} has {width} columns, but the head reads the first {d}")
        joined = np.hstack([rows, targets.astype(rows.dtype)])
        ends = np.split(joined, [len(parts[0])]) if name == "pairs" else []
        found[name] = (*ends, *value[2:]) if ends else joined
    return found, (d, width)


def _embedded(name: str, parts: list[Any], teacher: Any, encoder: Any) -> tuple[Any, Any]:
    """Return the classifier's columns and the teacher's vectors of a set."""
    if hasattr(teacher, "transform"):
        if encoder is None or not all(map(are_texts, parts)):
            raise ValueError(
                f"teacher is an encoder, so {name} must be texts, with encoder=, the one of the "
                f"classifier; for vectors, pass teacher={{{name!r}: its vectors, …}}"
            )
        texts = parts[0] if len(parts) == 1 else [text for part in parts for text in part]
        own, taught = [encoder.transform(texts)], [teacher.transform(texts)]
    elif not isinstance(teacher, Mapping) or name not in teacher:
        raise ValueError(
            f"teacher has no vectors of {name}: pass an encoder, or a mapping with the vectors of "
            "every set that is given"
        )
    else:
        if encoder is None and any(map(are_texts, parts)):
            raise ValueError(
                f"{name} holds texts, which need an encoder: pass encoder=, the one of the "
                "classifier, or embed them first"
            )
        own = [encoder.transform(part) if are_texts(part) else part for part in parts]
        taught = list(teacher[name]) if name == "pairs" else [teacher[name]]
    dtype = [np.float64, np.float32]
    rows, targets = (
        [check_array(as_matrix(one, what), dtype=dtype, input_name=what) for one in each]
        for each, what in ((own, name), (taught, f"teacher[{name!r}]"))
    )
    if (given := [len(one) for one in targets]) != (needed := [len(one) for one in rows]):
        raise ValueError(f"teacher[{name!r}] has {given} vectors, but {name} has {needed} rows")
    return np.concatenate(rows), np.concatenate(targets)
