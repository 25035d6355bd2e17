"""Devices, and tensors as arrays."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def as_array(X: Any) -> Any:
    """Turn a tensor into an array; leave anything else as it is.

    Parameters
    ----------
    X : object
        Anything.

    Returns
    -------
    object
        An ndarray in place of a tensor: of its dtype, but float32 for bfloat16, which NumPy does
        not have.
    """
    if not isinstance(X, Tensor):
        return X
    X = X.detach().cpu()
    return (X.float() if X.dtype == torch.bfloat16 else X).numpy()


def resolve_device(device: str | torch.device) -> torch.device:
    """Turn a device parameter into a device that can be used.

    Parameters
    ----------
    device : str or torch.device
        "auto" is "cuda" where there is one, else "cpu".

    Returns
    -------
    torch.device
        The device.

    Raises
    ------
    ValueError
        If torch does not know it or this machine does not have it.
    """
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
    """Give an array as a tensor on a device, floats as float32 and whole numbers as int64."""
    dtype = torch.float32 if array.dtype.kind == "f" else torch.int64
    return torch.as_tensor(array, dtype=dtype, device=device)
