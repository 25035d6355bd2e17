"""The exact solver: L-BFGS in the head's row space, and whitening outside it.

The outputs of a frozen head depend only on the r coordinates in its row space, and IsoScore does
not depend on the scale. So L-BFGS only searches the map to these coordinates, and the other d - r
directions are whitened in closed form.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor

from isoadapt._utils.threads import one_torch_thread
from isoadapt.adapters._engine._loop import task_loss
from isoadapt.adapters._engine._task import Problem
from isoadapt.adapters._linalg import whiten_complement
from isoadapt.adapters._maps import Affine, Floats


class _Objective(NamedTuple):
    points: Tensor  # (n, d), whitened
    targets: Tensor  # class numbers (n,), values in the problem's units or labels (n, C)
    coef: Tensor  # (C, r), the head in coordinates of its row space
    intercept: Tensor  # (C,)
    start: Tensor  # (r, d + 1), the initial map to these coordinates and its offset
    variances: Tensor  # (d, d): covariance of the points
    weight: float
    ridge: float
    row_weights: Tensor | None = None  # (n,), of mean 1

    def __call__(self, flat: Floats) -> tuple[float, Floats]:
        """Return the loss of a flattened map to the row space, and its flattened gradient."""
        block = self.start.new_tensor(flat).view_as(self.start).requires_grad_()
        loss = self.loss(block)
        return float(loss.detach()), torch.autograd.grad(loss, block)[0].cpu().numpy().ravel()

    def loss(self, block: Tensor) -> Tensor:
        """Return task loss plus weighted 1 - IsoScore plus ridge."""
        linear, offset = block[:, :-1], block[:, -1]
        outputs = torch.addmm(self.intercept, self.points @ linear.T + offset, self.coef.T)
        task = task_loss(outputs[None], self.targets, self.row_weights).sum()
        reader, scale = self.coef, 1 / len(self.coef)
        if self.targets.ndim == 1:  # only differences of logits count
            reader, scale = self.coef - self.coef.mean(0), 1.0
        moved = (reader @ (block - self.start)).square().sum()
        return task + self._anisotropy(linear) + self.ridge * scale * moved

    def _anisotropy(self, linear: Tensor) -> Tensor:
        """Weighted 1 - IsoScore with whitened directions outside the row space."""
        rank, d = linear.shape
        cov = linear @ self.variances @ linear.T
        square = cov.square().sum()
        ratio = cov.trace().square() / square.where(square > 0, torch.inf)
        return self.weight / (d - 1) * (rank - ratio).where(square > 0, 0.0)


def solve_exact(
    problem: Problem, weight: float, ridge: float, device: torch.device, tick: Callable[[], Any]
) -> tuple[Affine, list[float]]:
    """Return the linear layer that minimises the joint loss, and the losses of the iterations."""
    inside, outside = np.split(problem.coordinates.out, [problem.coordinates.n_read], axis=1)
    inner, losses = _solve_row_space(problem, weight, ridge, device, tick)
    if not weight:
        return Affine(inside @ inner.matrix + outside @ outside.T, inside @ inner.offset), losses
    return whiten_complement(problem.moments, inner, inside, outside)[0], losses


def _solve_row_space(
    problem: Problem, weight: float, ridge: float, device: torch.device, tick: Callable[[], Any]
) -> tuple[Affine, list[float]]:
    """Return the map to the coordinates in the row space, and the losses; empty without a head."""
    inner, coordinates, into = problem.inner_head(), problem.coordinates, problem.coordinates.into
    if inner is None:
        return Affine(np.zeros((0, len(problem.moments))), np.zeros(0)), []
    rank = coordinates.n_read
    start = np.column_stack([coordinates.start.matrix[:rank], coordinates.start.offset[:rank]])
    tensor = partial(torch.tensor, device=device)
    weighted = problem.sample.weights is not None
    objective = _Objective(
        tensor(problem.inputs()),
        tensor(cast(NDArray, problem.scaled_targets)),
        tensor(inner.coef_[:, :rank]),
        tensor(inner.intercept_),
        tensor(start),
        tensor(into.matrix @ problem.moments.covariance().numpy() @ into.matrix.T),
        weight,
        ridge,
        tensor(problem.row_weights()) if weighted else None,
    )

    def note(intermediate_result: OptimizeResult) -> None:
        losses.append(float(intermediate_result.fun))
        tick()

    with one_torch_thread():
        losses = [objective(start.ravel())[0]]
        result = minimize(
            objective,
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            callback=note,
            options={"maxiter": 500, "maxcor": 20},
        )
    block = coordinates.scale * result.x.reshape(start.shape)
    return Affine(block[:, :-1], block[:, -1]).after(into), losses
