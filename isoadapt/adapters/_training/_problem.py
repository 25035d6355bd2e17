"""The input of a fit: rows, their split, head and coordinates."""

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


@dataclass(frozen=True, eq=False)
class Problem:
    """The input of a fit, shared by members that are fitted to the same rows and split.

    Attributes
    ----------
    X : ndarray of shape (n_samples, n_features)
        Embeddings.
    y : ndarray of shape (n_samples,) or (n_samples, n_outputs), or None
        Labels or values.
    targets : ndarray or None
        The same as class numbers (n_samples,) or values (n_samples, n_outputs).
    head : LinearHead or None
        What reads the adapted embeddings.
    moments : Moments
        Of the rows that are trained on.
    coordinates : Coordinates
        In which the network is trained, from these moments.
    fitting : ndarray of shape (n_fitting,)
        Numbers of the rows that are trained on.
    validating : ndarray of shape (n_validating,), or None
        Numbers of the rows that choose the epoch, from which nothing else is taken.
    seed : int
        Of the generator that shuffles and draws the start.
    rng : RandomState
        Draws the bootstrap samples; each member has its own copy.
    weights : ndarray of shape (n_samples,) or None
        How often each row counts; None: once.
    kept : ndarray of shape (n_samples,) or None
        Which rows of the input X and y hold; None: all of them.
    weighted : bool
        Whether weights were given, and did not come from repeated rows only.
    refit : callable or None
        Makes the problem of the second fit, with all rows to train on; None if there is none.
    """

    X: NDArray[Any]
    y: NDArray[Any] | None
    targets: NDArray[Any] | None
    head: LinearHead | None
    moments: Moments
    coordinates: Coordinates
    fitting: NDArray[np.int64]
    validating: NDArray[np.int64] | None
    seed: int
    rng: np.random.RandomState
    weights: Floats | None = None
    kept: NDArray[np.int64] | None = None
    weighted: bool = False
    refit: Callable[["Problem"], "Problem"] | None = None

    @cached_property
    def on_all_rows(self) -> "Problem | None":
        """The problem of the second fit, with all rows to train on; None if there is none."""
        return None if self.refit is None else self.refit(self)

    @cached_property
    def inputs_root(self) -> Floats:
        """Give a root R of the covariance RRᵀ of what enters the network.

        Of shape (d, d), or the diagonal of a diagonal one, (d,).
        """
        coordinates = self.coordinates
        if coordinates.deviations is not None:
            return np.where(coordinates.dead, 0.0, coordinates.deviations)
        cov = self.moments.mapped(*coordinates.into).covariance().numpy()
        eigenvalues, vectors = descending_eigh(cov)
        return vectors * np.sqrt(eigenvalues)

    @cached_property
    def shrunk_root(self) -> Floats:
        """Give a root of the shrunk covariance of what enters the network, as `inputs_root`."""
        coordinates = self.coordinates
        if coordinates.deviations is not None:
            return np.ones(len(self.moments))
        cov = self.moments.mapped(*coordinates.into).covariance().numpy()
        eigenvalues, vectors = descending_eigh(cov)
        return vectors * np.sqrt(shrink(eigenvalues, oas_shrinkage(self.moments)))

    @cached_property
    def units(self) -> TargetUnits:
        """Give origin and unit of the targets, from the rows that are trained on."""
        weights = None if self.weights is None else self.weights[self.fitting]
        return TargetUnits.of(None if self.targets is None else self.targets[self.fitting], weights)

    def row_weights(self) -> Floats | None:
        """Give the weights of the rows in the task loss, of mean 1 over those trained on."""
        return None if self.weights is None else self.weights / self.weights[self.fitting].mean()

    def by_accuracy(self, scoring: Any) -> bool:
        """Whether a scoring is accuracy."""
        classifies = self.targets is not None and self.targets.ndim == 1
        return classifies and scoring in (None, "accuracy")

    @cached_property
    def automatic_ridge(self) -> float:
        """Estimate how firmly the head's outputs are to be held, from the rows trained on."""
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
        """Give what enters the network, without rounding in directions without variance."""
        points = map_rows(self.coordinates.into, self.X)
        points[np.ix_(self.fitting, self.coordinates.dead)] = 0
        return points
