"""What the checks of one device against the CPU share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks._data import Embeddings, load_embeddings, narrow_cone, stored_tasks


def agree(name: str, expected: Any, found: Any, tolerance: float) -> None:
    """Print the largest difference; refuse one above the tolerance."""
    difference = float(np.abs(np.asarray(expected) - np.asarray(found)).max())
    if not difference <= tolerance:
        raise ValueError(f"{name}: the devices differ by {difference:.2g}, over {tolerance:g}")
    print(f"{name}: largest difference {difference:.2g}, at most {tolerance:g} allowed", flush=True)


def finished(function: Callable[[], Any], device: torch.device) -> Callable[[], None]:
    """Wait for the device after the call, so that its work is in the time."""

    def call() -> None:
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return call


def sample_data(quick: bool) -> Embeddings:
    """Give the stored CoLA embeddings, else a cone of their size; if quick, a small cone."""
    if quick:
        return narrow_cone(300, 16, seed=0)
    return load_embeddings("cola") if "cola" in stored_tasks() else narrow_cone(8551, 384, seed=0)
