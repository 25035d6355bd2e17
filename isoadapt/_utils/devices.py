"""Devices of torch."""

import torch


def resolve_device(device: str | torch.device) -> torch.device:
    """Convert a device parameter to a device that can be used; raise ValueError if it cannot."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device={str(device)!r} cannot be used here ({str(error).splitlines()[0]}); choose "
            "'auto', 'cpu', or a GPU that torch finds"
        ) from error
