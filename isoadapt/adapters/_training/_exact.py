"""The exact solver: L-BFGS for the directions the head reads, whitening for the others.

A frozen head of rank r sees r output directions; IsoScore is free of scale and the other d - r
directions are free. So only the seen coordinates U have to be searched, and the unseen ones are
whitened in closed form.
"""

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax

from isoadapt.adapters._linalg import oas_shrinkage
from isoadapt.adapters._maps import Affine, Floats
from isoadapt.adapters._row_space import row_space, whiten_complement
from isoadapt.adapters._training._problem import Problem
from isoadapt.heads import LinearHead


class ExactFit(NamedTuple):
    """What the solver found."""

    map: Affine
    losses: list[float]
    n_iter: int


class _Objective(NamedTuple):
    points: Floats  # (n, d), whitened
    targets: NDArray[Any]  # class numbers (n,), or values (n, C) in their units
    coef: Floats  # (C, r): the head on the seen coordinates
    intercept: Floats  # (C,)
    start: Floats  # (r, d + 1): U_0 and its offset
    variances: Floats  # (d, d): covariance of the points
    weight: float
    ridge: float
    row_weights: Floats | None = None  # (n,), of mean 1

    def __call__(self, flat: Floats) -> tuple[float, Floats]:
        """Task loss + weight (1 - best IsoScore) + ridge × mean squared change of the outputs."""
        block = flat.reshape(self.start.shape)
        linear, offset = block[:, :-1], block[:, -1]
        seen = self.points @ linear.T + offset
        task, to_outputs = self._task(seen @ self.coef.T + self.intercept)
        to_seen = to_outputs @ self.coef
        gradient = np.column_stack([to_seen.T @ self.points, to_seen.sum(axis=0)])
        penalty, to_linear = self._anisotropy(linear)
        change = block - self.start
        pulled = self._metric() @ change
        gradient += 2 * self.ridge * pulled
        gradient[:, :-1] += to_linear
        return task + penalty + self.ridge * float((change * pulled).sum()), gradient.ravel()

    def _metric(self) -> Floats:
        """Squared change of the outputs as a form of that of the seen coordinates, (r, r)."""
        if self.targets.ndim == 2:
            return self.coef.T @ self.coef / len(self.coef)
        centred = self.coef - self.coef.mean(axis=0)
        return centred.T @ centred

    def _task(self, outputs: Floats) -> tuple[float, Floats]:
        n = len(outputs)
        weights = np.ones((1, 1)) if self.row_weights is None else self.row_weights[:, None]
        if self.targets.ndim == 2:
            error = outputs - self.targets
            return float((weights * error**2).mean()), 2 * weights * error / error.size
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        log_norm = np.log(np.exp(shifted).sum(axis=1))
        rows = np.arange(n)
        gradient = softmax(outputs, axis=1)
        gradient[rows, self.targets] -= 1
        losses = log_norm - shifted[rows, self.targets]
        return float((weights[:, 0] * losses).mean()), weights * gradient / n

    def _anisotropy(self, linear: Floats) -> tuple[float, Floats]:
        """Weighted 1 - IsoScore of the seen block, best unseen directions granted."""
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


def solve_exact(problem: Problem, weight: float, ridge: float, max_iter: int = 500) -> ExactFit:
    """Minimise the joint loss over all linear layers.

    Parameters
    ----------
    problem : Problem
        In whitened coordinates, the head's directions first. Without a head nothing but
        whitening is left.
    weight : float
        Of 1 - IsoScore, zero or more. At zero the unseen directions stay as they are.
    ridge : float
        Weight of the mean squared change of the head's outputs.
    max_iter : int, default=500
        Iterations of L-BFGS at most.

    Returns
    -------
    ExactFit
        The map, the loss after each iteration and their number.
    """
    head, out = problem.head, problem.coordinates.out
    if head is None or problem.targets is None:
        d = len(out)
        seen, unseen = np.zeros((d, 0)), np.eye(d)
        found = ExactFit(Affine(np.zeros((0, d)), np.zeros(0)), [], 0)
    else:
        rank = row_space(head.coef_)[0].shape[1]
        seen, unseen = out[:, :rank], out[:, rank:]
        found = _solve_seen(problem, head, rank, weight, ridge, max_iter)
    if not weight:
        matrix = seen @ found.map.matrix + unseen @ unseen.T
        return found._replace(map=Affine(matrix, seen @ found.map.offset))
    shrinkage = oas_shrinkage(problem.moments)
    whitened = whiten_complement(problem.moments, found.map, seen, unseen, shrinkage)
    return found._replace(map=whitened)


def _solve_seen(
    problem: Problem, head: LinearHead, rank: int, weight: float, ridge: float, max_iter: int
) -> ExactFit:
    coordinates, into = problem.coordinates, problem.coordinates.into
    inner = problem.units.head(coordinates.inner_head(head))
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
    return ExactFit(Affine(block[:, :-1], block[:, -1]).after(into), losses, int(result.nit))
