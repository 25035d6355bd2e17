"""The exact solver: what the joint loss of a linear layer under a frozen head comes down to.

A frozen head of rank r sees r output directions; IsoScore is free of scale and the other d - r
directions are free. So only the seen coordinates U have to be searched, and the unseen ones are
whitened in closed form.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax

from isoadapt.adapters._closed_form import row_space, whiten_unseen
from isoadapt.adapters._coordinates import Coordinates
from isoadapt.adapters._maps import Affine, Floats, map_rows
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead


class ExactFit(NamedTuple):
    """What the solver found."""

    map: Affine
    losses: list[float]
    n_iter: int


class _Problem(NamedTuple):
    points: Floats  # (n, d), whitened
    targets: NDArray[Any]  # class numbers (n,), or values (n, C)
    coef: Floats  # (C, r): the head on the seen coordinates
    intercept: Floats  # (C,)
    start: Floats  # (r, d + 1): U_0 and its offset
    variances: Floats  # (d, d): covariance of the points
    weight: float
    ridge: float

    def __call__(self, flat: Floats) -> tuple[float, Floats]:
        """Task loss + weight (1 - best IsoScore) + ridge × mean squared change, and gradient."""
        block = flat.reshape(self.start.shape)
        linear, offset = block[:, :-1], block[:, -1]
        seen = self.points @ linear.T + offset
        task, to_outputs = self._task(seen @ self.coef.T + self.intercept)
        to_seen = to_outputs @ self.coef
        gradient = np.column_stack([to_seen.T @ self.points, to_seen.sum(axis=0)])
        penalty, to_linear = self._anisotropy(linear)
        change = block - self.start
        pulled = np.column_stack([change[:, :-1] @ self.variances, change[:, -1]])
        gradient += 2 * self.ridge * pulled
        gradient[:, :-1] += to_linear
        return task + penalty + self.ridge * float((change * pulled).sum()), gradient.ravel()

    def _task(self, outputs: Floats) -> tuple[float, Floats]:
        n = len(outputs)
        if self.targets.ndim == 2:
            error = outputs - self.targets
            return float((error**2).mean()), 2 * error / error.size
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        log_norm = np.log(np.exp(shifted).sum(axis=1))
        rows = np.arange(n)
        gradient = softmax(outputs, axis=1)
        gradient[rows, self.targets] -= 1
        return float((log_norm - shifted[rows, self.targets]).mean()), gradient / n

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


def solve_exact(
    X: NDArray[np.floating],
    y: NDArray[Any] | None,
    head: LinearHead | None,
    moments: Moments,
    coordinates: Coordinates,
    weight: float,
    ridge: float,
    max_iter: int = 500,
) -> ExactFit:
    """Minimise the joint loss over all linear layers.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Embeddings.
    y : ndarray of shape (n_samples,) or (n_samples, n_outputs), or None
        Class numbers or values; None without a head.
    head : LinearHead or None
        The frozen head; None leaves nothing but whitening.
    moments : Moments
        Of X.
    coordinates : Coordinates
        Whitened ones, the head's directions first.
    weight : float
        Of 1 - IsoScore, zero or more. At zero the unseen directions stay as they are.
    ridge : float
        Weight of the mean squared change of the seen coordinates.
    max_iter : int, default=500
        Iterations of L-BFGS at most.

    Returns
    -------
    ExactFit
        The map, the loss after each iteration and their number.
    """
    d = X.shape[1]
    if head is None or y is None:
        seen, unseen = np.zeros((d, 0)), np.eye(d)
        found = ExactFit(Affine(np.zeros((0, d)), np.zeros(0)), [], 0)
    else:
        rank = row_space(head.coef_)[0].shape[1]
        seen, unseen = coordinates.out[:, :rank], coordinates.out[:, rank:]
        found = _solve_seen(X, y, head, seen, moments, coordinates, weight, ridge, max_iter)
    if not weight:
        matrix = seen @ found.map.matrix + unseen @ unseen.T
        return found._replace(map=Affine(matrix, seen @ found.map.offset))
    return found._replace(map=whiten_unseen(moments, found.map, seen, unseen))


def _solve_seen(
    X: NDArray[np.floating],
    y: NDArray[Any],
    head: LinearHead,
    seen: Floats,
    moments: Moments,
    coordinates: Coordinates,
    weight: float,
    ridge: float,
    max_iter: int,
) -> ExactFit:
    into, rank = coordinates.into, seen.shape[1]
    start = np.column_stack([coordinates.start.matrix[:rank], coordinates.start.offset[:rank]])
    variances = into.matrix @ moments.covariance().numpy() @ into.matrix.T
    problem = _Problem(
        map_rows(into, X), y, head.coef_ @ seen, head.intercept_, start, variances, weight, ridge
    )
    losses = [problem(start.ravel())[0]]
    result = minimize(
        problem,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=lambda intermediate_result: losses.append(float(intermediate_result.fun)),
        options={"maxiter": max_iter, "maxcor": 20},
    )
    block = result.x.reshape(start.shape)
    seen_map = Affine(block[:, :-1], block[:, -1]).after(into)
    return ExactFit(seen_map, losses, int(result.nit))
