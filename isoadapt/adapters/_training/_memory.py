"""How many members have room to be trained together."""

import torch

from isoadapt.adapters._training._member import Settings

CPU_BYTES = 2 * 2**30
_CACHED_BYTES = 48 * 2**20  # weights, gradients and moments of more members slow a CPU down
_TENSORS = 12  # of the size of the weights, the kept epoch included
_ROW_TENSORS = 6  # of the size of a batch, and of the validation rows
_INDEX_BYTES = 24  # of a row: its number in the order of a member's epoch


def n_members(
    settings: Settings,
    shape: tuple[int, int],
    validation_share: float,
    max_memory: int | None,
    own_rows: bool,
) -> int:
    """How many members have room, fitted to X of a shape (n, d), each on its own rows or not.

    `max_memory` is in bytes; None is 2 GiB, or half of what is free on a GPU.
    """
    n, d = shape
    weights = 4 * d * (d + 1) * (1 if settings.network == "linear" else 3)
    judged = 4 * d * round(n * validation_share)
    batch = 4 * d * min(n, settings.batch_size)
    size = _TENSORS * weights + _ROW_TENSORS * (judged + batch) + _INDEX_BYTES * n
    if own_rows:
        size += 4 * n * d
    if settings.device.type == "cuda":
        return max(1, (max_memory or torch.cuda.mem_get_info(settings.device)[0] // 2) // size)
    return max(1, min((max_memory or CPU_BYTES) // size, _CACHED_BYTES // (4 * weights)))
