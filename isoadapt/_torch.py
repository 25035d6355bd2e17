"""Devices."""

import torch


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
