"""The input of a fit: rows, split, head and coordinates."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt.adapters._linalg import descending_eigh, oas_shrinkage, shrink
from isoadapt.adapters._maps import Floats, map_rows
from isoadapt.adapters._training._coordinates import Coordinates
from isoadapt.adapters._training._ridge import automatic_ridge
from isoadapt.adapters._training._task_score import TargetUnits
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """The input of a fit, shared by all members with the same rows and split."""

    X: NDArray[Any]  # embeddings, (n_samples, n_features)
    y: NDArray[Any] | None  # labels or values, (n_samples,) or (n_samples, n_outputs)
    targets: NDArray[Any] | None  # y as class numbers (n_samples,) or values (n_samples, n_outputs)
    head: LinearHead | None  # on the adapted embeddings
    moments: Moments  # of the training rows
    coordinates: Coordinates  # in which the network is trained, computed from the moments
    fitting: NDArray[np.int64]  # numbers of the training rows
    validating: NDArray[np.int64] | None  # numbers of the rows that only choose the epoch
    seed: int  # of the generator that shuffles and draws the initial weights
    rng: np.random.RandomState  # draws the bootstrap samples; each member copies it
    weights: Floats | None = None  # frequencies of the rows, (n_samples,); None: all are 1
    kept: NDArray[np.int64] | None = None  # row numbers of X in the input; None: all rows
    weighted: bool = False  # whether the user gave weights, rather than only repeated rows
    # Makes the problem of the second fit, which trains on all rows; None: there is none.
    refit: Callable[["Problem"], "Problem"] | None = None

    @cached_property
    def on_all_rows(self) -> "Problem | None":
        """Problem of the second fit, which trains on all rows; None if there is no second fit."""
        return None if self.refit is None else self.refit(self)

    @cached_property
    def inputs_root(self) -> Floats:
        """A root R of the covariance RRᵀ of the network's inputs.

        It has shape (d, d), or is the diagonal (d,) if the inputs are uncorrelated.
        """
        coordinates = self.coordinates
        if coordinates.deviations is not None:
            return np.where(coordinates.dead, 0.0, coordinates.deviations)
        cov = self.moments.mapped(*coordinates.into).covariance().numpy()
        eigenvalues, vectors = descending_eigh(cov)
        return vectors * np.sqrt(eigenvalues)

    @cached_property
    def validation_cov(self) -> Floats | None:
        """Covariance (d, d) of the network's inputs on the validation rows; None without these."""
        if self.validating is None:
            return None
        moments = Moments().update(self.X[self.validating])
        return moments.mapped(*self.coordinates.into).covariance().numpy()

    @cached_property
    def shrunk_root(self) -> Floats:
        """Root of the shrunk covariance of the network's inputs, in the format of `inputs_root`."""
        coordinates = self.coordinates
        if coordinates.deviations is not None:
            return np.ones(len(self.moments))
        cov = self.moments.mapped(*coordinates.into).covariance().numpy()
        eigenvalues, vectors = descending_eigh(cov)
        return vectors * np.sqrt(shrink(eigenvalues, oas_shrinkage(self.moments)))

    @cached_property
    def units(self) -> TargetUnits:
        """Origin and unit of the targets, from the training rows."""
        weights = None if self.weights is None else self.weights[self.fitting]
        return TargetUnits.of(None if self.targets is None else self.targets[self.fitting], weights)

    def row_weights(self) -> Floats | None:
        """Return the row weights (n,) of the task loss, of mean 1 over the training rows."""
        return None if self.weights is None else self.weights / self.weights[self.fitting].mean()

    def by_accuracy(self, scoring: Any) -> bool:
        """Whether a scoring is accuracy."""
        classifies = self.targets is not None and self.targets.ndim == 1
        return classifies and scoring in (None, "accuracy")

    @cached_property
    def automatic_ridge(self) -> float:
        """The automatic weight of the ridge, from the training rows; 0 without a head or labels."""
        targets = self.units.targets(self.targets)
        if self.head is None or targets is None:
            return 0.0
        rows = self.X[self.fitting]
        outputs = self.units.head(self.head).outputs(rows)
        weights = self.row_weights()
        return automatic_ridge(
            rows,
            targets[self.fitting],
            outputs,
            self.moments,
            None if weights is None else weights[self.fitting],
        )

    def inputs(self) -> Floats:
        """Return the network's inputs (n, d).

        Those of the training rows are exactly zero in directions without variance.
        """
        points = map_rows(self.coordinates.into, self.X)
        points[np.ix_(self.fitting, self.coordinates.dead)] = 0
        return points
