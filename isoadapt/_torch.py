"""Devices and threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
            "GPU that torch finds, such as 'cuda'"
        ) from error


class _OneThread:
    """How many blocks are inside, and what to put back when the last leaves."""

    lock = threading.Lock()
    inside = 0
    before = 1


@contextmanager
def one_thread(wanted: bool) -> Iterator[None]:
    """Let torch use one CPU thread inside the block.

    Small operations gain nothing from more, and where cores are shared they wait for each
    other many times longer than they compute. Blocks may overlap in several threads.

    Parameters
    ----------
    wanted : bool
        False leaves everything as it is.

    Yields
    ------
    None
        Nothing.
    """
    if not wanted:
        yield
        return
    with _OneThread.lock:
        if not _OneThread.inside:
            _OneThread.before = torch.get_num_threads()
        _OneThread.inside += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _OneThread.lock:
            _OneThread.inside -= 1
            if not _OneThread.inside:
                torch.set_num_threads(_OneThread.before)
