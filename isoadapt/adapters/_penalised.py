"""Base classes of adapters that are fitted to a task under a linear head, and to a penalty."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.metrics import get_scorer, get_scorer_names
from torch import nn

from isoadapt._utils.containers import comparable
from isoadapt._utils.devices import resolve_device
from isoadapt._utils.messages import warn
from isoadapt._utils.sklearn_private import Interval, StrOptions
from isoadapt.adapters._base import BaseAdapter, fit_method, make_random_state
from isoadapt.adapters._engine._choice import takes_weights
from isoadapt.adapters._engine._coordinates import raw_coordinates, whitened_coordinates
from isoadapt.adapters._engine._network import Rates
from isoadapt.adapters._engine._task import Penalty, Problem, Task
from isoadapt.adapters._engine._train import Result, epochs_bar, train
from isoadapt.adapters._heads import needs_fit
from isoadapt.adapters._rows import Index, Sample, check_spread, distinct_rows, split_rows
from isoadapt.geometry import Moments

Split = tuple[Index, Index | None, int, np.random.RandomState]
_ROWS_PER_DIMENSION = 10  # with fewer, the fit is repeated on all rows if it includes the head


@dataclass(eq=False, repr=False, kw_only=True)
class TaskAdapter(BaseAdapter):
    """Base class of adapters that are fitted to a task; subclasses are dataclasses too."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "ridge": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "device": [str],
        "verbose": ["verbose"],
    }

    _auto_head = "logistic"
    coordinates = "whitened"  # in which the map is found; a parameter if the adapter is trained

    head: Any = field(default="auto", kw_only=False)
    ridge: float | str = "auto"
    device: str = "auto"
    verbose: int = 0

    @abstractmethod
    def _fit(self, problem: Problem) -> Self:
        """Find the map and set the fitted attributes."""

    @fit_method
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
            Σ_S and the spectrum. A penalty of a batch or of the validation rows counts each
            distinct row once.
        groups : array-like of shape (n_samples,), default=None
            Group of each row. The rows of a group are either all in the validation split or all in
            the training split. If there are too few groups, all rows are training rows. The folds
            that choose the penalty of a head or an automatic ridge keep groups whole too. In a
            search, groups and weights are passed to ``fit`` only with metadata routing, by
            ``set_fit_request(sample_weight=True, groups=True)``; otherwise groups only define the
            folds.

        Raises
        ------
        ValueError
            If X is constant or not finite, if y has labels unknown to the head, if parameters
            exclude each other, or if training diverges. Also if weights are negative or sum to less
            than 2, if `scoring` does not support weights, or if a head that is to be fitted does
            not support weights and they are not whole numbers.
        """
        return self._fit(self._prepare(X, y, sample_weight, groups))

    def _prepare(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Problem:
        """Check, merge and split rows, and compute head and coordinates from the training rows."""
        sample = distinct_rows(*self._read_rows(X, y, sample_weight, groups))
        return self._problem(sample, self._split(sample, sample_weight is not None))

    def _split(self, sample: Sample, weighted: bool) -> Split:
        """Return the rows to fit to and those to validate on, a seed and a generator."""
        return np.arange(len(sample.X)), None, 0, np.random.RandomState(0)

    def _problem(self, sample: Sample, split: Split) -> Problem:
        """Compute the head and the coordinates from the training rows."""
        fitting, validating, seed, rng = split
        training = sample if validating is None else sample.take(fitting)
        moments = Moments().update(training.X, training.weights)
        check_spread(moments)
        head = self._resolve_head(training)
        raw = self.coordinates == "raw"
        return Problem(
            sample=sample,
            targets=None if head is None or sample.y is None else head._targets(sample.y),
            head=head,
            moments=moments,
            coordinates=raw_coordinates(moments) if raw else whitened_coordinates(moments, head),
            fitting=fitting,
            validating=validating,
            seed=seed,
            rng=rng,
        )


@dataclass(eq=False, repr=False, kw_only=True)
class PenalisedAdapter(TaskAdapter):
    """Base class of adapters that are trained by mini-batches with a penalty."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "balance": [StrOptions({"ema", "cumulative"}), None],
        "smoothing": [Interval(Real, 0, 1, closed="right")],
        "head_training": [StrOptions({"frozen", "joint", "alternating"})],
        "coordinates": [StrOptions({"whitened", "raw"})],
        "lr": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "lr_schedule": [StrOptions({"linear", "constant"})],
        "batch_size": [Interval(Integral, 2, None, closed="left")],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="left"), None],
        "patience": [Interval(Integral, 1, None, closed="left"), None],
        "scoring": [StrOptions(set(get_scorer_names())), callable, None],
        "random_state": ["random_state"],
    }

    # These parameters may differ between adapters that are trained together.
    _batchable_params: ClassVar[frozenset[str]] = frozenset(
        {"lr", "weight_decay", "random_state", "ridge", "smoothing", "verbose"}
    )

    balance: str | None = None
    smoothing: float = 0.15
    head_training: str = "frozen"
    coordinates: str = "whitened"
    lr: float | str = "auto"
    lr_schedule: str = "linear"
    batch_size: int = 64
    max_epochs: int = 30
    weight_decay: float = 0.0
    validation_fraction: float | None = 0.3
    patience: int | None = 10
    scoring: Any = None
    random_state: Any = None

    @abstractmethod
    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        """Return the penalty that is evaluated on each batch."""

    @property
    @abstractmethod
    def _penalty_weight(self) -> float:
        """The weight of the penalty relative to the task loss."""

    def _split(self, sample: Sample, weighted: bool) -> Split:
        """Split the rows if there are validation rows, after checks of parameters."""
        self._check_combination()
        share = self.validation_fraction
        scored = share and self._head is not None and self.scoring is not None
        if weighted and scored and not takes_weights(get_scorer(self.scoring)):
            raise ValueError(
                f"scoring={self.scoring!r} does not support sample_weight, but sample_weight was "
                "given: use a scoring that does, scoring=None, or validation_fraction=None"
            )
        rng = make_random_state(self.random_state)
        seed = int(rng.randint(2**31))
        by = sample.y if self._head_kind() == "classifier" else None
        return *split_rows(len(sample.X), by, share, rng, sample.groups), seed, rng

    def _fit(self, problem: Problem) -> Self:
        """Train by mini-batches and set the fitted attributes."""
        task = self._task(problem)
        if task.weight:
            for message in task.penalty.batch_warnings(problem, self.batch_size):
                warn(message)
        with epochs_bar(self.max_epochs, self.verbose) as bar:
            (result,) = train_adapters([self], [task], bar.update)
        self._take_result(result)
        for warning in result.choice.warnings():
            warn(warning)
        return self

    def _take_result(self, result: Result) -> Self:
        """Set the fitted attributes from the result of the training, or raise its error."""
        if result.map is None:
            raise result.error or ValueError("training returned no map")
        self.ridge_ = result.ridge
        self.history_ = result.choice.history
        self.best_epoch_ = result.choice.best_epoch
        self.n_iter_ = int(result.choice.history[-1]["epoch"])
        return self._set_fitted(result.map, result.head)

    def _task(self, problem: Problem, n_epochs: int | None = None) -> Task:
        """Return what is trained; without validation rows, for `n_epochs`."""
        device = resolve_device(self.device)
        penalty, weight = self._make_penalty(problem, device), self._penalty_weight
        if isinstance(penalty.loss, nn.Module):
            penalty.loss.to(device)
        if weight and self.batch_size < penalty.least_rows:
            raise ValueError(
                f"batch_size={self.batch_size} is too small: with these parameters, the penalty "
                f"needs batches of {penalty.least_rows} rows or more"
            )
        return Task(
            problem=problem,
            penalty=penalty,
            weight=weight,
            ridge=problem.automatic_ridge if self.ridge == "auto" else float(self.ridge),
            rates=self._rates(problem.coordinates.n_read),
            smoothing=self.smoothing,
            score=problem.score(self.scoring),
            n_epochs=n_epochs or self.max_epochs,
            balance=self.balance,
            head_training=self.head_training,
            lr_schedule=self.lr_schedule,
            batch_size=self.batch_size,
            max_epochs=self.max_epochs,
            patience=self.patience,
            device=device,
        )

    def _rates(self, n_read: int) -> Rates:
        """Return learning rates and weight decay."""
        if self.lr != "auto":
            return Rates(float(self.lr), self.weight_decay)
        if self.head_training != "frozen" or self.coordinates != "whitened":
            return Rates(1e-3, self.weight_decay)
        return Rates(1e-2, self.weight_decay, 1e-3, n_read)

    def _fits_twice(self, problem: Problem) -> bool:
        """Whether to fit again to all rows, which helps a head that is fitted here to few rows."""
        n, d = problem.sample.X.shape
        few = n < _ROWS_PER_DIMENSION * d
        return few and needs_fit(self._head) and problem.validating is not None

    def _batch_key(self) -> tuple[Any, ...]:
        """Return a key that is equal for adapters that can be trained together."""
        shared = self.get_params(deep=False).items()
        own = self._batchable_params
        return type(self), *((name, comparable(value)) for name, value in shared if name not in own)

    def _check_combination(self) -> None:
        """Raise ValueError if parameters exclude each other."""
        if self._head is None and self.head_training != "frozen":
            raise ValueError(
                f"head_training={self.head_training!r} needs a head, but head=None: use "
                "head_training='frozen', or pass a head"
            )


def train_adapters(
    adapters: Sequence[PenalisedAdapter],
    tasks: Sequence[Task],
    tick: Callable[[], Any] = lambda: None,
) -> list[Result]:
    """Train tasks, again on all rows for the kept number of epochs where that helps the head."""
    results = train(tasks, tick)

    @cache
    def on_all_rows(problem: Problem) -> Problem:
        split = np.arange(len(problem.sample.X)), None, problem.seed, problem.rng
        return adapters[0]._problem(problem.sample, split)

    again = {
        k: adapter._task(on_all_rows(task.problem), results[k].choice.best_epoch)
        for k, (adapter, task) in enumerate(zip(adapters, tasks, strict=True))
        if results[k].error is None and adapter._fits_twice(task.problem)
    }
    for k, second in zip(again, train(list(again.values())), strict=True):
        results[k] = replace(second, choice=results[k].choice)
    return results


@dataclass(eq=False, repr=False, kw_only=True)
class WeightedPenaltyAdapter(PenalisedAdapter):
    """Base class of adapters that are trained on the task loss plus lam times a penalty."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "lam": [Interval(Real, None, None, closed="neither")],
    }
    _batchable_params: ClassVar[frozenset[str]] = PenalisedAdapter._batchable_params | {"lam"}

    lam: float = 1.0

    @property
    def _penalty_weight(self) -> float:
        return self.lam
