"""The work that no search over I-STAR candidates avoids, measured alone."""

import time
from collections.abc import Callable, Sequence
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isoadapt import IStarAdapter
from isoadapt.adapters._istar import _steps_between

_MEMBERS = 20  # trained together, as many as AdapterSearchCV takes at 384 dimensions
_LR = 0.01  # "auto" in whitened coordinates
_REPEATS = 5
_PASSES = 7  # AdamW reads weights, gradients and two moments, and writes all but the gradients


class Work(NamedTuple):
    """Matrix products and optimizer steps of a search, with the seconds that they take here."""

    flop: float
    product_seconds: float
    n_bytes: float
    step_seconds: float

    def __str__(self) -> str:
        return (
            f"the matrix products ({self.flop / 1e12:.1f} TFLOP at "
            f"{self.flop / self.product_seconds / 1e9:.0f} GFLOP/s) and the optimizer's steps "
            f"({self.n_bytes / 1e9:.0f} GB at {self.n_bytes / self.step_seconds / 1e9:.0f} GB/s)"
        )

    @property
    def seconds(self) -> float:
        """Seconds of both."""
        return self.product_seconds + self.step_seconds


def search_work(
    adapter: IStarAdapter, zetas: Sequence[float], n_rows: int, d: int, n_fits: int
) -> Work:
    """Work of `n_fits` fits to `n_rows` rows, with one ζ each in equal numbers.

    In a step, a member has five products of a batch with a d×d matrix: the adapted rows, their
    product with the shrinkage root, and three for the gradients. ‖Σ_S‖² and its gradient are two
    products of d×d matrices in those steps in which they are computed. Each evaluation has two
    products of d×d matrices.
    """
    n_training = n_rows - round((adapter.validation_fraction or 0.0) * n_rows)
    n_batches = -(-n_training // adapter.batch_size)
    n_steps, n_evaluations = adapter.max_epochs * n_batches, adapter.max_epochs + 1
    weight = torch.randn(_MEMBERS, d, d)
    batch = torch.randn(_MEMBERS, adapter.batch_size, d)
    n_squares = 2 * n_steps * _share_of_exact_steps(zetas) + 2 * n_evaluations
    products = [
        (weight, weight, n_squares),
        (batch, weight, 5 * n_steps),
    ]
    n_blocks = n_fits / _MEMBERS
    return Work(
        flop=n_blocks * sum(n * 2 * left.numel() * right.shape[-1] for left, right, n in products),
        product_seconds=n_blocks
        * sum(n * _product_seconds(left, right) for left, right, n in products),
        n_bytes=n_blocks * n_steps * _PASSES * weight.nbytes,
        step_seconds=n_blocks * n_steps * _step_seconds(weight),
    )


def _share_of_exact_steps(zetas: Sequence[float]) -> float:
    """Mean share of the steps in which ‖Σ_S‖² is computed."""
    return mean(1 / _steps_between(zeta, _LR) for zeta in zetas)


def _product_seconds(left: Tensor, right: Tensor) -> float:
    """Return the shortest time of a batched product."""
    out = left @ right
    return _shortest(lambda: torch.bmm(left, right, out=out))


def _step_seconds(weight: Tensor) -> float:
    """Return the shortest time of a fused AdamW step."""
    parameter = nn.Parameter(weight.clone())
    parameter.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    optimizer.step()
    return _shortest(optimizer.step)


def _shortest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        before = time.perf_counter()
        work()
        times.append(time.perf_counter() - before)
    return min(times)
