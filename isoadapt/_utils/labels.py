"""Labels of rows."""

from typing import Any

from numpy.typing import NDArray


def is_missing(label: Any) -> bool:
    """Whether a label is None, or a NaN, NaT or pandas.NA, none of which is equal to itself."""
    try:
        return label is None or bool(label != label)
    except (TypeError, ValueError):  # the truth value of pandas.NA is not defined
        return True


def check_present(labels: NDArray[Any], name: str) -> None:
    """Raise ValueError if a row has no label."""
    if labels.dtype.kind != "O":
        return
    missing = [row for row, label in enumerate(labels) if is_missing(label)]
    if missing:
        raise ValueError(
            f"{name} lacks the label of {len(missing)} row(s), first of row {missing[0]} (None or "
            "NaN): leave these rows out, or give them a label"
        )
