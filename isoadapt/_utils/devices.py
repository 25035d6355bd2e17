"""Devices, and conversion between tensors and arrays."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def as_array(X: Any) -> Any:
    """Convert a tensor to an array, bfloat16 to float32, and return anything else unchanged."""
    if not isinstance(X, Tensor):
        return X
    X = X.detach().cpu()
    return (X.float() if X.dtype == torch.bfloat16 else X).numpy()


def resolve_device(device: str | torch.device) -> torch.device:
    """Convert a device parameter to a device that can be used; raise ValueError if it cannot."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device={str(device)!r} cannot be used here ({reason}); choose 'auto', 'cpu', or a "
            "GPU that torch finds"
        ) from error


def to_tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    """Move an array to a device as float32 or int64; the result may share its memory."""
    dtype = torch.float32 if array.dtype.kind == "f" else torch.int64
    return torch.as_tensor(array, dtype=dtype, device=device)
