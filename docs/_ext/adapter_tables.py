"""The table of measured figures of every adapter, made from the registry and the results."""

from docs._ext import results
from isoadapt.adapters._registry import VARIANTS

CONTROLS = ["no adapter", "head refit only", "same layer, no penalty"]
COLUMNS = {
    "accuracy": "accuracy",
    "cross-entropy": "cross-entropy",
    "corrected": "IsoScore, corrected",
    "EV1": "EV1",
    "fit, s": "fit, s",
}


def tables() -> dict[str, str]:
    """Give the text of each generated table by the name of its file."""
    return {"measured.txt": _measured()}


def _measured() -> str:
    rows = results.table("cola dev, n=")
    variants = [each.name for each in VARIANTS]
    lines = [".. list-table::", "   :header-rows: 1", "   :class: measured", ""]
    lines += _row(["adapter", *COLUMNS.values()])
    for name in [*CONTROLS, *variants]:
        label = name
        if name in variants:
            class_, _, rest = name.partition(",")
            label = f":class:`~isoadapt.{class_}`" + (f",{rest}" if rest else "")
        row = rows.get(name, dict.fromkeys(COLUMNS, "not measured"))
        lines += _row([label, *(row[column] for column in COLUMNS)])
    return "\n".join([*lines, ""])


def _row(cells: list[str]) -> list[str]:
    return [f"   {'* ' if i == 0 else '  '}- {cell}" for i, cell in enumerate(cells)]
