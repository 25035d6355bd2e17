"""The number of members that fit into memory."""

import torch

from isoadapt.adapters._training._member import Settings

CPU_BYTES = 2 * 2**30
_CACHED_BYTES = 48 * 2**20  # larger weights, gradients and Adam moments slow a CPU down
_TENSORS = 12  # number of tensors of the size of the weights, including the kept epoch
_ROW_TENSORS = 6  # number of tensors of the size of a batch plus the validation rows
_INDEX_BYTES = 24  # per row, for its number in the shuffled order of an epoch


def n_members(
    settings: Settings,
    shape: tuple[int, int],
    validation_share: float,
    max_memory: int | None,
    own_rows: bool,
) -> int:
    """Return how many members, fitted to X of the given shape (n, d), fit into memory together.

    `own_rows` says whether each member has its own rows. `max_memory` is in bytes; None means 2
    GiB, or half of the free memory of a GPU.
    """
    n, d = shape
    weights = 4 * d * (d + 1) * (1 if settings.network == "linear" else 3)
    validation = 4 * d * round(n * validation_share)
    batch = 4 * d * min(n, settings.batch_size)
    size = _TENSORS * weights + _ROW_TENSORS * (validation + batch) + _INDEX_BYTES * n
    if own_rows:
        size += 4 * n * d
    if settings.device.type == "cuda":
        return max(1, (max_memory or torch.cuda.mem_get_info(settings.device)[0] // 2) // size)
    return max(1, min((max_memory or CPU_BYTES) // size, _CACHED_BYTES // (4 * weights)))
