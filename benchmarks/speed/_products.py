"""The matrix products of a search over I-STAR candidates, measured alone."""

import time
from collections.abc import Sequence
from statistics import mean

import torch
from torch import Tensor

from isoadapt import IStarAdapter
from isoadapt.adapters._istar import _ExactShrinkage
from isoadapt.losses import IsoScoreLoss

_MEMBERS = 20  # trained together, as many as AdapterSearchCV takes at 384 dimensions
_REPEATS = 5


def product_seconds(
    adapter: IStarAdapter, zetas: Sequence[float], n_rows: int, d: int, n_fits: int
) -> float:
    """Seconds of all products of `n_fits` fits to `n_rows` rows, with one ζ each in equal numbers.

    In a step, a member has five products of a batch with a d×d matrix: the adapted rows, their
    product with the shrinkage root, and three for the gradients. ‖Σ_S‖² and its gradient are two
    products of d×d matrices in those steps in which they are computed. Each evaluation has two
    products of the validation rows and three of d×d matrices.
    """
    share = adapter.validation_fraction or 0.0
    n_validation = round(share * n_rows)
    n_batches = -(-(n_rows - n_validation) // adapter.batch_size)
    n_steps, n_evaluations = adapter.max_epochs * n_batches, adapter.max_epochs + 1
    weight = torch.randn(_MEMBERS, d, d)
    batch = torch.randn(_MEMBERS, adapter.batch_size, d)
    validation = torch.randn(_MEMBERS, n_validation, d)
    square, thin = _seconds(weight, weight), _seconds(batch, weight)
    wide = _seconds(validation, weight) + _seconds(validation.mT, validation)
    step = 5 * thin + 2 * square * _share_of_exact_steps(zetas)
    return (n_steps * step + n_evaluations * (wide + 3 * square)) * n_fits / _MEMBERS


def _share_of_exact_steps(zetas: Sequence[float]) -> float:
    """Mean share of the steps in which ‖Σ_S‖² is computed."""
    penalty = _ExactShrinkage(IsoScoreLoss(torch.tensor(zetas), "linear"), torch.ones(1, 1), False)
    return mean(1 / steps for steps in penalty._steps_between())


def _seconds(left: Tensor, right: Tensor) -> float:
    """Return the shortest time of a batched product."""
    out = left @ right
    times = []
    for _ in range(_REPEATS):
        before = time.perf_counter()
        torch.bmm(left, right, out=out)
        times.append(time.perf_counter() - before)
    return min(times)
