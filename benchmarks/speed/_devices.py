"""Common parts of the checks of a device against the CPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks._data import Embeddings, load_embeddings, narrow_cone, stored_tasks


def agree(name: str, expected: Any, found: Any, tolerance: float) -> None:
    """Print the largest difference, and raise if it is above the tolerance."""
    difference = float(np.abs(np.asarray(expected) - np.asarray(found)).max())
    if not difference <= tolerance:
        raise ValueError(f"{name}: the devices differ by {difference:.2g}, over {tolerance:g}")
    print(f"{name}: largest difference {difference:.2g}, at most {tolerance:g} allowed", flush=True)


def finished(function: Callable[[], Any], device: torch.device) -> Callable[[], None]:
    """Return a function that also waits for the device, so that all its work is timed."""

    def call() -> None:
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return call


def sample_data(quick: bool) -> Embeddings:
    """Return the stored CoLA embeddings, else synthetic ones of that size; small ones if quick."""
    if quick:
        return narrow_cone(300, 16, seed=0)
    return load_embeddings("cola") if "cola" in stored_tasks() else narrow_cone(8551, 384, seed=0)
