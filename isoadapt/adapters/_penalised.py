"""Base classes of adapters that are trained on a task loss under a linear head and a penalty."""

from abc import abstractmethod
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import _fit_context
from sklearn.metrics import get_scorer, get_scorer_names
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import has_fit_parameter

from isoadapt._utils.containers import comparable
from isoadapt._utils.devices import one_blas_thread_if_small
from isoadapt._utils.messages import warn
from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._heads import needs_fit
from isoadapt.adapters._rows import (
    Sample,
    check_frequencies,
    check_spread,
    distinct_rows,
    n_batches,
    restore_on_failure,
    warn_of_large_mean,
)
from isoadapt.adapters._training._epoch_choice import takes_weights
from isoadapt.adapters._training._exact import solve_exact
from isoadapt.adapters._training._fit import (
    diverged,
    epochs_bar,
    fit_members,
    make_member,
    prepare_problem,
)
from isoadapt.adapters._training._networks import Rates
from isoadapt.adapters._training._problem import (
    Coordinates,
    Outcome,
    Penalty,
    Problem,
    raw_coordinates,
    whitened_coordinates,
)
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead
from isoadapt.losses._isoscore import fewest_points
from isoadapt.metrics._points import codes_of

_ROWS_PER_DIMENSION = 10  # with fewer, the fit is repeated on all rows if it includes the head


@dataclass(eq=False, repr=False, kw_only=True)
class PenalisedAdapter(BaseAdapter):
    """Base class of adapters that are trained with a penalty; subclasses are dataclasses too."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseAdapter._parameter_constraints,
        "balance": [StrOptions({"ema", "cumulative"}), None],
        "smoothing": [Interval(Real, 0, 1, closed="right")],
        "network": [StrOptions({"linear", "mlp"})],
        "head_training": [StrOptions({"frozen", "joint", "alternating"})],
        "coordinates": [StrOptions({"whitened", "raw"})],
        "ridge": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "lr": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "lr_schedule": [StrOptions({"linear", "constant"})],
        "batch_size": [Interval(Integral, 2, None, closed="left")],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="left"), None],
        "patience": [Interval(Integral, 1, None, closed="left"), None],
        "scoring": [StrOptions(set(get_scorer_names())), callable, None],
        "device": [str],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    _batchable_params: ClassVar[frozenset[str]] = frozenset(
        {"lr", "weight_decay", "random_state", "ridge", "smoothing", "verbose"}
    )
    """Names of the parameters that may differ between adapters that are trained together."""

    _batches_folds: ClassVar[bool] = False
    """Whether adapters that are trained together may have different rows, such as folds."""

    head: Any = field(default="logistic", kw_only=False)
    balance: str | None = None
    smoothing: float = 0.15
    network: str = "linear"
    head_training: str = "frozen"
    coordinates: str = "raw"
    ridge: float | str = 0.0
    lr: float | str = "auto"
    lr_schedule: str = "constant"
    batch_size: int = 64
    max_epochs: int = 30
    weight_decay: float = 0.0
    validation_fraction: float | None = 0.3
    patience: int | None = 10
    scoring: Any = None
    device: str = "auto"
    random_state: Any = None
    verbose: int = 0

    def _maps_affinely(self) -> bool:
        return self.network == "linear"

    @abstractmethod
    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        """Return the penalty that is evaluated on each batch."""

    @abstractmethod
    def _penalty_weight(self) -> float:
        """Return the weight of the penalty relative to the task loss."""

    @_fit_context(prefer_skip_nested_validation=True)
    @restore_on_failure
    def fit(
        self,
        X: "ArrayLike",  # quoted: help() would otherwise show the whole union
        y: "ArrayLike | None" = None,
        sample_weight: "ArrayLike | None" = None,
        groups: "ArrayLike | None" = None,
    ) -> Self:
        """Fit to embeddings.

        Equal rows with the same group and label are merged into one row with their summed weight.
        Copies of a row are therefore never on both sides of the validation split, and a fit to
        repeated rows is the same as a fit with weights.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or values; ignored if `head` is None.
        sample_weight : array-like of shape (n_samples,), default=None
            Frequency weights: a row of weight 2 counts as two equal rows, a row of weight 0 is left
            out. The weights are used in the task loss, in the fit of a head, in the scores that
            choose the epoch, and in everything that is computed from moments: coordinates, units,
            Σ_S and the spectrum of "linear" networks. A penalty of a batch or of the validation
            rows counts each distinct row once.
        groups : array-like of shape (n_samples,), default=None
            Group of each row. The rows of a group are either all in the validation split or all in
            the training split. If there are too few groups, all rows are training rows. The folds
            that choose the penalty of a head or an automatic ridge keep groups whole too. In a
            search, groups and weights are passed to ``fit`` only with metadata routing, by
            ``set_fit_request(sample_weight=True, groups=True)``; otherwise groups only define the
            folds.

        Returns
        -------
        Self
            The fitted adapter.

        Raises
        ------
        ValueError
            If X is constant or not finite, if y has labels unknown to the head, if parameters
            exclude each other, or if training diverges. Also if weights are negative or sum to 1 or
            less, or if `scoring` or a head that is to be fitted does not support weights.
        """
        with one_blas_thread_if_small(X):
            return self._train(prepare_problem(self, X, y, sample_weight, groups))

    def _fits_twice(self, X: NDArray[Any]) -> bool:
        """Whether to fit again to all rows, which helps a head that is fitted here to few rows."""
        return len(X) < _ROWS_PER_DIMENSION * X.shape[1] and needs_fit(self.head)

    def _set_outcome(self, outcome: Outcome) -> Self:
        """Set the fitted attributes from the outcome of the training, or raise its error."""
        if outcome.map is None:
            raise outcome.error or ValueError("training returned no map")
        self.ridge_ = outcome.ridge
        self.history_ = outcome.run.history
        self.best_epoch_ = outcome.run.best_epoch
        self.n_iter_ = int(outcome.run.history[-1]["epoch"])
        self._fitted_rows = outcome.sketch
        return self._set_fitted(outcome.map, outcome.head)

    def _rates(self, coordinates: Coordinates) -> Rates:
        """Return learning rates and weight decay."""
        if self.lr != "auto":
            return Rates(float(self.lr), self.weight_decay)
        plain = self.network == "linear" and self.head_training == "frozen"
        if not plain or self.coordinates != "whitened":
            return Rates(1e-3, self.weight_decay)
        return Rates(1e-2, self.weight_decay, 1e-3, coordinates.n_read)

    def _check_sample(
        self,
        X: ArrayLike,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None,
        groups: ArrayLike | None,
    ) -> Sample:
        """Validate the input of ``fit`` and merge equal rows."""
        rows, labels = self._check_fit_input(X, y)
        check_spread(rows)
        weights = check_frequencies(sample_weight, rows)
        if weights is not None and self.head is not None:
            self._check_scoring_takes_weights()
        row_groups = None if groups is None else codes_of(groups, len(rows), "groups")[1]
        used = self._validation_share() or needs_fit(self.head) or self.ridge == "auto"
        return distinct_rows(rows, labels, row_groups if used else None, weights)

    def _check_scoring_takes_weights(self) -> None:
        if not self._validation_share() or self.scoring is None:
            return
        if not takes_weights(get_scorer(self.scoring)):
            raise ValueError(
                f"scoring={self.scoring!r} does not support sample_weight, but sample_weight was "
                "given: use a scoring that does, scoring=None, or validation_fraction=None"
            )

    def _initial_head(
        self,
        X: NDArray[Any],
        y: NDArray[Any] | None,
        weights: NDArray[Any] | None,
        groups: NDArray[Any] | None,
        weighted: bool,
    ) -> LinearHead | None:
        """Return the head before training; unless `weighted`, weights are those of merged rows."""
        by_name = isinstance(self.head, str) or not needs_fit(self.head)
        if weighted or weights is None or by_name or has_fit_parameter(self.head, "sample_weight"):
            return self._resolve_head(X, y, weights, groups)
        counts = weights.astype(np.int64)
        return self._resolve_head(
            X.repeat(counts, axis=0), None if y is None else y.repeat(counts, axis=0)
        )

    def _ridge_weight(self, problem: Problem) -> float:
        """Return the weight of the mean squared change of the head's outputs."""
        return problem.automatic_ridge if self.ridge == "auto" else float(self.ridge)

    def _validation_share(self) -> float | None:
        """Return the share of the rows that choose the epoch, or None."""
        return self.validation_fraction

    def _batch_key(self) -> tuple[Any, ...] | None:
        """Return a key that is equal for adapters that can be trained together, or None."""
        shared = self.get_params(deep=False).items()
        return (
            type(self),
            *(
                (name, comparable(value))
                for name, value in shared
                if name not in self._batchable_params
            ),
        )

    def _check_combination(self) -> None:
        """Raise ValueError if parameters exclude each other."""
        if self.head is None and self.head_training != "frozen":
            raise ValueError(
                f"head_training={self.head_training!r} needs a head, but head=None: use "
                "head_training='frozen', or pass a head"
            )

    def _make_coordinates(self, moments: Moments, head: LinearHead | None) -> Coordinates:
        if self.coordinates == "raw":
            return raw_coordinates(moments)
        return whitened_coordinates(moments, head)

    def _train(self, problem: Problem) -> Self:
        """Train by mini-batches and set the fitted attributes."""
        warn_of_large_mean(problem.moments)
        with epochs_bar(self.max_epochs, self.verbose) as bar:
            try:
                (outcome,) = fit_members([make_member(self, problem)], lambda _: bar.update())
            except torch.linalg.LinAlgError as failure:
                raise diverged(self._rates(problem.coordinates).lr) from failure
        self._set_outcome(outcome)
        for doubt in outcome.run.warnings(self.max_epochs):
            warn(doubt)
        return self


@dataclass(eq=False, repr=False, kw_only=True)
class WeightedPenaltyAdapter(PenalisedAdapter):
    """Base class of adapters that are trained on the task loss plus lam times a penalty."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **PenalisedAdapter._parameter_constraints,
        "lam": [Interval(Real, None, None, closed="neither")],
    }
    _batchable_params: ClassVar[frozenset[str]] = PenalisedAdapter._batchable_params | {"lam"}

    lam: float = 1.0

    def _penalty_weight(self) -> float:
        return self.lam


class IsoScorePenalty(Penalty):
    """A penalty that depends on the covariance of the points only."""

    depends_on_shifts: ClassVar[bool] = False


@dataclass(eq=False, repr=False, kw_only=True)
class IsoScoreAdapter(PenalisedAdapter):
    """Base class of adapters whose penalty is IsoScore."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **PenalisedAdapter._parameter_constraints,
        "bias_corrected": ["boolean"],
        "solver": [StrOptions({"minibatch", "exact"})],
    }

    bias_corrected: bool = False
    coordinates: str = "whitened"
    solver: str = "minibatch"
    ridge: float | str = "auto"
    lr_schedule: str = "linear"

    def _check_combination(self) -> None:
        super()._check_combination()
        if self.solver == "exact":
            for name, admissible in (("network", "linear"), ("head_training", "frozen")):
                holds = getattr(self, name) == admissible
                self._check_exact_condition(name, holds, repr(admissible))
        elif self._penalty_weight() and self.batch_size < self._fewest_rows():
            raise ValueError(
                f"batch_size={self.batch_size} is too small: with these parameters, the penalty "
                f"needs batches of {self._fewest_rows()} rows or more"
            )

    def _fewest_rows(self) -> int:
        """Return the number of rows that a batch needs for the penalty to have a gradient."""
        return fewest_points(0, self.bias_corrected)

    def _warn_of_small_batches(self, n_rows: int) -> None:
        """Warn if batches are too small for the IsoScore to have a gradient."""
        smallest = n_rows // n_batches(n_rows, self.batch_size)
        if self._penalty_weight() and smallest < self._fewest_rows():
            warn(
                f"{n_rows} training rows give batches of {smallest} with "
                f"batch_size={self.batch_size}, but the penalty needs {self._fewest_rows()} rows "
                "in a batch, so smaller ones have none: use a larger batch_size or more rows"
            )

    def _check_exact_condition(self, name: str, holds: bool, admissible: str) -> None:
        """Raise ValueError unless a condition of solver="exact" on a parameter holds."""
        if not holds:
            raise ValueError(
                f"{name}={getattr(self, name)!r} has no exact solution: use {name}={admissible}, "
                "or solver='minibatch'"
            )

    def _make_coordinates(self, moments: Moments, head: LinearHead | None) -> Coordinates:
        if self.solver == "exact":
            return whitened_coordinates(moments, head)
        return super()._make_coordinates(moments, head)

    def _validation_share(self) -> float | None:
        return None if self.solver == "exact" else super()._validation_share()

    def _batch_key(self) -> tuple[Any, ...] | None:
        return None if self.solver == "exact" else super()._batch_key()

    def _train(self, problem: Problem) -> Self:
        if self.solver == "minibatch":
            self._warn_of_small_batches(len(problem.fitting))
            return super()._train(problem)
        self.__dict__.pop("best_epoch_", None)
        self.ridge_ = self._ridge_weight(problem)
        map_, losses = solve_exact(problem, self._penalty_weight(), self.ridge_)
        self.history_ = [{"iteration": number, "loss": loss} for number, loss in enumerate(losses)]
        self.n_iter_ = max(len(losses) - 1, 1)
        self._fitted_rows = problem.sketch
        return self._set_fitted(map_, problem.head)
