"""The checkpoint on which the gallery runs."""

from pathlib import Path
from typing import Any

CHECKPOINT = Path(__file__).parents[2] / "isoadapt-demo" / "checkpoint"


def checkpoint_argument(gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
    """Pass each example the checkpoint that `make demo` leaves, wherever the example runs."""
    return [str(CHECKPOINT)]
