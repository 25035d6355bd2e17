"""The exact solver: L-BFGS in the head's row space, and whitening outside it.

The outputs of a frozen head depend only on the r coordinates in its row space, and IsoScore does
not depend on the scale. So L-BFGS only searches the map to these coordinates, and the other d - r
directions are whitened in closed form.
"""

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from isoadapt.adapters._engine._task import Problem
from isoadapt.adapters._linalg import cross_entropy, whiten_complement
from isoadapt.adapters._maps import Affine, Floats
from isoadapt.heads import LinearHead


class _Objective(NamedTuple):
    points: Floats  # (n, d), whitened
    targets: NDArray[Any]  # class numbers (n,), values in the problem's units or labels (n, C)
    coef: Floats  # (C, r), the head in coordinates of its row space
    intercept: Floats  # (C,)
    start: Floats  # (r, d + 1), the initial map to these coordinates and its offset
    variances: Floats  # (d, d): covariance of the points
    weight: float
    ridge: float
    row_weights: Floats | None = None  # (n,), of mean 1

    def __call__(self, flat: Floats) -> tuple[float, Floats]:
        """Return task loss plus weighted 1 - IsoScore plus ridge, and the flattened gradient."""
        block = flat.reshape(self.start.shape)
        linear, offset = block[:, :-1], block[:, -1]
        inside = self.points @ linear.T + offset
        task, to_outputs = self._task(inside @ self.coef.T + self.intercept)
        to_inside = to_outputs @ self.coef
        gradient = np.column_stack([to_inside.T @ self.points, to_inside.sum(axis=0)])
        penalty, to_linear = self._anisotropy(linear)
        change = block - self.start
        pulled = self._metric() @ change
        gradient += 2 * self.ridge * pulled
        gradient[:, :-1] += to_linear
        return task + penalty + self.ridge * float((change * pulled).sum()), gradient.ravel()

    def _metric(self) -> Floats:
        """Matrix (r, r) that maps changes in the row space to squared changes of the outputs."""
        if self.targets.ndim == 2:
            return self.coef.T @ self.coef / len(self.coef)
        centred = self.coef - self.coef.mean(axis=0)
        return centred.T @ centred

    def _task(self, outputs: Floats) -> tuple[float, Floats]:
        weights = np.ones((1, 1)) if self.row_weights is None else self.row_weights[:, None]
        if self.targets.dtype == bool:
            losses = np.logaddexp(0, outputs) - self.targets * outputs
            gradient = weights * (expit(outputs) - self.targets) / outputs.size
            return float((weights * losses).mean()), gradient
        if self.targets.ndim == 2:
            error = outputs - self.targets
            return float((weights * error**2).mean()), 2 * weights * error / error.size
        return cross_entropy(outputs, self.targets, weights[:, 0])

    def _anisotropy(self, linear: Floats) -> tuple[float, Floats]:
        """Weighted 1 - IsoScore with whitened directions outside the row space; its gradient."""
        spread = linear @ self.variances
        cov = spread @ linear.T
        trace, square = cov.trace(), (cov**2).sum()
        rank, d = linear.shape
        if not square > 0:
            return 0.0, np.zeros_like(linear)
        ratio = trace**2 / square
        scale = self.weight / (d - 1)
        to_cov = 2 * trace / square * np.eye(rank) - 2 * trace**2 / square**2 * cov
        return scale * (rank - ratio), -2 * scale * to_cov @ spread


def solve_exact(
    problem: Problem, weight: float, ridge: float, max_iter: int = 500
) -> tuple[Affine, list[float]]:
    """Return the linear layer that minimises the joint loss, and the losses on the way."""
    out, rank, d = problem.coordinates.out, problem.coordinates.n_read, len(problem.moments)
    inside, outside = out[:, :rank], out[:, rank:]
    inner, losses = Affine(np.zeros((0, d)), np.zeros(0)), list[float]()
    if problem.head is None:
        outside = np.eye(d)
    else:
        inner, losses = _solve_row_space(problem, problem.head, weight, ridge, max_iter)
    if not weight:
        return Affine(inside @ inner.matrix + outside @ outside.T, inside @ inner.offset), losses
    return whiten_complement(problem.moments, inner, inside, outside)[0], losses


def _solve_row_space(
    problem: Problem, head: LinearHead, weight: float, ridge: float, max_iter: int
) -> tuple[Affine, list[float]]:
    """Return the map to the coordinates in the row space, and the losses."""
    coordinates, into = problem.coordinates, problem.coordinates.into
    rank, inner = coordinates.n_read, problem.units.head(coordinates.inner_head(head))
    start = np.column_stack([coordinates.start.matrix[:rank], coordinates.start.offset[:rank]])
    objective = _Objective(
        problem.inputs(),
        cast(NDArray[Any], problem.units.targets(problem.targets)),
        inner.coef_[:, :rank],
        inner.intercept_,
        start,
        into.matrix @ problem.moments.covariance().numpy() @ into.matrix.T,
        weight,
        ridge,
        problem.row_weights(),
    )
    losses = [objective(start.ravel())[0]]
    result = minimize(
        objective,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=lambda intermediate_result: losses.append(float(intermediate_result.fun)),
        options={"maxiter": max_iter, "maxcor": 20},
    )
    block = coordinates.scale * result.x.reshape(start.shape)
    return Affine(block[:, :-1], block[:, -1]).after(into), losses
