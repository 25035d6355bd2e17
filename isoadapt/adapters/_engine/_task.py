"""What a training is given: rows with their head and coordinates, a penalty, and numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from isoadapt.adapters._engine._choice import Score, TargetUnits, make_score
from isoadapt.adapters._engine._coordinates import Coordinates
from isoadapt.adapters._engine._network import Layer, Rates
from isoadapt.adapters._engine._output_ridge import automatic_ridge
from isoadapt.adapters._linalg import descending_eigh, oas_shrinkage, shrink
from isoadapt.adapters._maps import Floats, map_rows
from isoadapt.adapters._rows import Index, Sample, n_batches
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """The rows of a fit, and what is computed from them; tasks of a search share it."""

    sample: Sample
    targets: NDArray[Any] | None  # y as class numbers (n_samples,), or values or booleans as y
    head: LinearHead | None  # on the adapted embeddings
    moments: Moments  # of the training rows
    coordinates: Coordinates  # in which the network is trained, computed from the moments
    fitting: Index  # numbers of the training rows
    validating: Index | None  # numbers of the rows that only choose the epoch
    seed: int  # of the generator that shuffles the rows
    rng: np.random.RandomState  # draws the bootstrap samples; each task copies it
    features: dict[str, Any] = field(default_factory=dict)  # number and names, for a search

    @cached_property
    def inputs_root(self) -> Floats:
        """A root R (d, d) of the inputs' covariance RRᵀ, or its diagonal (d,) if uncorrelated."""
        coordinates = self.coordinates
        if coordinates.deviations is not None:
            return np.where(coordinates.dead, 0.0, coordinates.deviations)
        return self._root(0.0)

    @cached_property
    def shrunk_root(self) -> Floats:
        """Root of the shrunk covariance of the network's inputs, in the format of `inputs_root`."""
        if self.coordinates.deviations is not None:
            return np.ones(len(self.moments))
        return self._root(oas_shrinkage(self.moments))

    def _root(self, shrinkage: float) -> Floats:
        cov = self.moments.mapped(*self.coordinates.into).covariance().numpy()
        eigenvalues, vectors = descending_eigh(cov)
        return vectors * np.sqrt(shrink(eigenvalues, shrinkage))

    @cached_property
    def units(self) -> TargetUnits:
        """Origin and unit of the targets, from the training rows."""
        given = self.targets, self.sample.weights
        return TargetUnits.of(*(None if part is None else part[self.fitting] for part in given))

    @cached_property
    def scaled_targets(self) -> NDArray[Any] | None:
        """The targets in their units, with which the network is trained."""
        return self.units.targets(self.targets)

    def inner_head(self) -> LinearHead | None:
        """Return the head on the network's outputs that gives the scaled targets."""
        return self.head and self.units.head(self.coordinates.inner_head(self.head))

    def row_weights(self) -> Floats:
        """Return the row weights (n,) of the task loss, of mean 1 over the training rows."""
        weights = self.sample.weights
        if weights is None:
            return np.ones(len(self.sample.X))
        return weights / weights[self.fitting].mean()

    def score(self, scoring: Any) -> Score | None:
        """Return the metric of the task on the validation rows; None without these or a head."""
        held, weights = self.validating, self.sample.weights
        if held is None or self.head is None:
            return None
        y, targets = (cast(NDArray, part)[held] for part in (self.sample.y, self.targets))
        weights = None if weights is None else weights[held]
        return make_score(self.head, y, targets, self.units, weights, scoring)

    @cached_property
    def automatic_ridge(self) -> float:
        """The automatic weight of the ridge, from the training rows; 0 without a head or labels."""
        if self.head is None or self.scaled_targets is None:
            return 0.0
        fitting, groups = self.fitting, self.sample.groups
        rows = self.sample.X[fitting]
        return automatic_ridge(
            rows,
            self.scaled_targets[fitting],
            self.units.head(self.head).outputs(rows),
            self.row_weights()[fitting],
            None if groups is None else groups[fitting],
        )

    def inputs(self, dtype: DTypeLike = np.float64) -> NDArray[np.floating]:
        """Return the network's inputs (n, d), 0 in training rows where there is no variance."""
        points = map_rows(self.coordinates.into, self.sample.X, dtype)
        points[np.ix_(self.fitting, self.coordinates.dead)] = 0
        return points


@dataclass(eq=False)
class Penalty:
    """Penalty of adapted points: `loss` maps points (K, n, d) to one value per member (K,)."""

    loss: Callable[..., Tensor]
    least_rows: int = 1  # of a batch, for the penalty to have a gradient
    shared: bool = False  # whether it serves all tasks that are trained together
    shifts: bool = True  # whether the penalty changes when all points are shifted

    def join(self, others: Sequence[Any]) -> "Penalty":
        """Return one penalty for the members of this and the other penalties, in this order."""
        return self if self.shared or not others else _Looped([self, *others])

    def batch_warnings(self, problem: Problem, batch_size: int) -> list[str]:
        """Return what to warn of, because batches are too small for the penalty to act."""
        n_rows = len(problem.fitting)
        smallest = n_rows // n_batches(n_rows, batch_size)
        if smallest >= self.least_rows:
            return []
        return [
            f"{n_rows} training rows give batches of {smallest} with batch_size={batch_size}, but "
            f"the penalty needs {self.least_rows} rows in a batch, so smaller ones have none: use "
            "a larger batch_size or more rows"
        ]

    def refresh(self, layer: Layer) -> None:
        """Prepare for an epoch with the present layer; the default does nothing."""

    def __call__(self, points: Tensor, targets: Tensor | None, layer: Layer) -> Tensor:
        """Return the penalties (K,) of adapted points (K, n, d).

        Targets are class numbers (n,), or values or booleans (n, n_outputs), with a leading axis K
        if the members have different rows. `layer` is what adapted the points.
        """
        return self.loss(points)


class _Looped(Penalty):
    """Penalties that are evaluated one after the other, each on the points of its member."""

    def __init__(self, penalties: Sequence[Penalty]) -> None:
        super().__init__(penalties[0].loss, shifts=penalties[0].shifts)
        self.penalties = penalties

    def refresh(self, layer: Layer) -> None:
        for penalty, member in zip(self.penalties, layer.split(), strict=True):
            penalty.refresh(member)

    def __call__(self, points: Tensor, targets: Tensor | None, layer: Layer) -> Tensor:
        each: Sequence[Tensor | None] = [targets] * len(points)
        if targets is not None and targets.ndim == (2 if targets.dtype == torch.int64 else 3):
            each = targets.unbind()
        parts = zip(self.penalties, points.split(1), each, layer.split(), strict=True)
        return torch.cat([penalty(Z, own, member) for penalty, Z, own, member in parts])


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stack one tensor (1, ...) for each member to (K, ...), or keep one that all of them share."""
    same = all(torch.equal(tensor, tensors[0]) for tensor in tensors)
    return tensors[0] if same else torch.cat(list(tensors))


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """One fit: its rows, its penalty of the adapted rows, and its numbers."""

    problem: Problem
    penalty: Penalty
    weight: float  # of the penalty, relative to the task loss
    ridge: float  # weight, in the task loss, of the mean squared change of the head's outputs
    rates: Rates
    smoothing: float
    score: Score | None  # None: the epoch with the lowest penalty is the best
    n_epochs: int  # most epochs to run
    # Equal in all tasks that are trained together; see IsotropyLayer.
    balance: str | None
    head_training: str
    lr_schedule: str
    batch_size: int
    max_epochs: int  # in which the linear schedule ends
    patience: int | None
    device: torch.device


def member_problems(tasks: Sequence[Task]) -> list[Problem]:
    """Return the problem of each member of a network, or a single one that all of them share."""
    problems = [task.problem for task in tasks]
    return problems[:1] if all(each is problems[0] for each in problems) else problems
