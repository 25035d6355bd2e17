"""Adapters trained by a joint loss: the task's under a linear head, and a penalty."""

import inspect
import warnings
from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from numbers import Integral, Number, Real
from pickle import PicklingError
from typing import Any, ClassVar, Self

import joblib
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, _fit_context
from sklearn.metrics import get_scorer, get_scorer_names
from sklearn.utils import check_array, check_consistent_length, column_or_1d
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import has_fit_parameter

from isoadapt._utils.devices import as_array, resolve_device
from isoadapt._utils.threads import one_blas_thread_if_small
from isoadapt.adapters._base import BaseAdapter, own_random_state, whole_or_nothing
from isoadapt.adapters._closed_form import check_frequencies
from isoadapt.adapters._spread import check_spread, warn_of_large_mean
from isoadapt.adapters._training._coordinates import (
    Coordinates,
    raw_coordinates,
    whitened_coordinates,
)
from isoadapt.adapters._training._distinct import Sample, distinct_rows
from isoadapt.adapters._training._engine import diverged, fit_members
from isoadapt.adapters._training._loop import epochs_bar
from isoadapt.adapters._training._member import Member, Outcome, Settings
from isoadapt.adapters._training._memory import n_members
from isoadapt.adapters._training._optimizer import Rates
from isoadapt.adapters._training._penalty import Penalty
from isoadapt.adapters._training._problem import Problem
from isoadapt.adapters._training._split import split_rows
from isoadapt.adapters._training._task_score import make_score, takes_weights
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead, needs_fit

_ROWS_PER_DIMENSION = 10  # with fewer, a head is fitted again to all rows in the end


@dataclass(eq=False, repr=False, kw_only=True)
class PenalisedAdapter(BaseAdapter):
    """Base class of adapters that are trained with a penalty.

    A subclass is a dataclass of its own parameters, decorated as this one, with ``_make_penalty``
    and ``_penalty_weight``; the parameters and attributes that all have are added to its
    docstring.
    """

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
        {"lr", "weight_decay", "random_state", "ridge", "verbose"}
    )
    """Parameters in which adapters that are trained together may differ."""

    _batches_folds: ClassVar[bool] = False
    """Whether adapters that are trained together may be fitted to different rows."""

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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__doc__ is not None:  # python -OO strips docstrings
            defaults = {
                name: repr(getattr(cls, name)).replace("'", '"')
                for name in PenalisedAdapter.__dataclass_fields__
            }
            cls.__doc__ = _completed(inspect.cleandoc(cls.__doc__), defaults)

    def _maps_affinely(self) -> bool:
        return self.network == "linear"

    @abstractmethod
    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        """Return the penalty of a batch."""

    @abstractmethod
    def _penalty_weight(self) -> float:
        """Return the weight of the penalty beside the task loss."""

    @_fit_context(prefer_skip_nested_validation=True)
    @whole_or_nothing
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Fit to embeddings.

        Identical rows (with the same group and label) are merged into one row with their summed
        weight, so copies never fall on both sides of the validation split, and a fit to repeated
        rows is a fit with weights.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or values; not used where ``head`` is None.
        sample_weight : array-like of shape (n_samples,), default=None
            Frequency weights: weight 2 counts a row twice, weight 0 leaves it out. They enter the
            task loss, a head that is fitted, the scores that choose the epoch, and all that is
            taken from moments: coordinates, units, Σ_S and the spectrum of "linear" networks.
            What a penalty takes from a batch, or from the validation rows, counts each distinct
            row once.
        groups : array-like of shape (n_samples,), default=None
            Group of each row. The validation rows that choose the epoch are whole groups; with
            too few groups all rows are trained on. Without such rows, as with an exact solver or
            ``validation_fraction=None``, groups have no effect. In a search, groups and weights
            reach ``fit`` only with metadata routing, by
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
            exclude each other, or if training diverges. Also if weights are negative or sum to no
            more than 1, or if ``scoring`` or a head that is to be fitted does not take weights.
        """
        with one_blas_thread_if_small(X):
            return self._train(self._prepare(X, y, sample_weight, groups))

    def _prepare(
        self,
        X: ArrayLike,
        y: ArrayLike | None,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Problem:
        """Check the input and set out what there is to fit, from the rows that are trained on."""
        sample = self._check_sample(X, y, sample_weight, groups)
        self._check_combination()
        rng = own_random_state(self.random_state)
        seed = int(rng.randint(2**31))
        rows, labels, weights = sample.X, sample.y, sample.weights
        stratify = labels if self._head_kind() == "classifier" else None
        fitting, validating = split_rows(
            len(rows), stratify, self._validation_share(), rng, sample.groups
        )
        trained = rows if validating is None else rows[fitting]
        check_spread(trained, "rows that are trained on")
        counts = None if weights is None else check_frequencies(weights[fitting], trained)
        known = None if labels is None else labels[fitting]
        head = self._first_head(trained, known, counts, weighted=sample_weight is not None)
        targets = None if head is None or labels is None else head.targets(labels)
        moments = Moments().update(trained, counts)
        return Problem(
            rows,
            labels,
            targets,
            head,
            moments,
            self._make_coordinates(moments, head),
            fitting,
            validating,
            seed,
            rng,
            weights,
            sample.kept,
            sample_weight is not None,
            self._refit_problem if self._fits_again(rows, validating) else None,
        )

    def _fits_again(self, X: NDArray[Any], validating: NDArray[np.int64] | None) -> bool:
        """Whether the rows that chose the epoch are trained on too in the end.

        A head that is fitted needs all rows where they are few; a given one has its rows already.
        """
        few = len(X) < _ROWS_PER_DIMENSION * X.shape[1]
        return validating is not None and few and needs_fit(self.head)

    def _refit_problem(self, problem: Problem) -> Problem:
        """Make the problem of a second fit, of head and adapter to all rows."""
        head = self._first_head(problem.X, problem.y, problem.weights, problem.weighted)
        moments = Moments().update(problem.X, problem.weights)
        return replace(
            problem,
            targets=None if head is None or problem.y is None else head.targets(problem.y),
            head=head,
            moments=moments,
            coordinates=self._make_coordinates(moments, head),
            fitting=np.arange(len(problem.X)),
            validating=None,
            refit=None,
        )

    def _make_member(self, problem: Problem) -> Member:
        """Set out as plain data how this adapter is fitted to a problem."""
        settings = self._settings()
        score, least_error = None, 0.0
        if problem.validating is not None and problem.head is not None and problem.y is not None:
            weights = None if problem.weights is None else problem.weights[problem.validating]
            labels = problem.y[problem.validating]
            score = make_score(problem.head, labels, self.scoring, problem.units, weights)
        if problem.validating is not None and problem.by_accuracy(self.scoring):
            least_error = 1 / len(problem.validating)
        return Member(
            problem,
            settings,
            self._make_penalty(problem, settings.device),
            self._penalty_weight(),
            self._ridge_weight(problem),
            self._rates(problem.coordinates),
            score,
            least_error,
            self._make_member,
        )

    def _settings(self) -> Settings:
        """Give what adapters that are trained together have in common."""
        return Settings(
            self.network,
            self.head_training,
            self.balance,
            self.smoothing,
            self.lr_schedule,
            self.batch_size,
            self.max_epochs,
            self.patience,
            resolve_device(self.device),
            self._head_kind() != "regressor",
        )

    def _n_members(self, shape: tuple[int, int], max_memory: int | None, own_rows: bool) -> int:
        """How many such fits have room to be trained together, each on its own rows or not."""
        share = float(self._validation_share() or 0)
        return n_members(self._settings(), shape, share, max_memory, own_rows)

    def _take(self, outcome: Outcome) -> Self:
        """Take over what came of the training."""
        if outcome.map is None:
            raise outcome.error or ValueError("the fit gave no map")
        self.ridge_ = outcome.ridge
        self.history_ = outcome.run.history
        self.best_epoch_ = outcome.run.best_epoch
        self.n_iter_ = int(outcome.run.history[-1]["epoch"])
        return self._set_fitted(outcome.map, outcome.head)

    def _rates(self, coordinates: Coordinates) -> Rates:
        """Learning rates and weight decay."""
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
        """Validate what is fitted to, and take repeated rows together."""
        rows, labels = self._check_fit_input(X, y)
        check_spread(rows)
        weights = check_frequencies(sample_weight, rows)
        if weights is not None and self.head is not None:
            self._check_scoring_takes_weights()
        numbers = None
        if groups is not None:
            numbers = _check_groups(groups)
            check_consistent_length(rows, numbers)
        return distinct_rows(rows, labels, numbers if self._validation_share() else None, weights)

    def _check_scoring_takes_weights(self) -> None:
        if not self._validation_share() or self.scoring is None:
            return
        if not takes_weights(get_scorer(self.scoring)):
            raise ValueError(
                f"scoring={self.scoring!r} takes no sample_weight, but sample_weight was given: "
                "use a scoring that takes it, scoring=None, or validation_fraction=None"
            )

    def _first_head(
        self,
        X: NDArray[Any],
        y: NDArray[Any] | None,
        weights: NDArray[Any] | None,
        weighted: bool,
    ) -> LinearHead | None:
        """Resolve the head; one that takes no weights is fitted to the rows as they were given."""
        by_name = isinstance(self.head, str) or not needs_fit(self.head)
        if weighted or weights is None or by_name or has_fit_parameter(self.head, "sample_weight"):
            return self._resolve_head(X, y, weights)
        times = weights.astype(np.int64)
        return self._resolve_head(
            X.repeat(times, axis=0), None if y is None else y.repeat(times, 0)
        )

    def _ridge_weight(self, problem: Problem) -> float:
        """Weight of the mean squared change of the head's outputs."""
        return problem.automatic_ridge if self.ridge == "auto" else float(self.ridge)

    def _validation_share(self) -> float | None:
        """Share of the rows that choose the epoch."""
        return self.validation_fraction

    def _batch_key(self) -> tuple[Any, ...] | None:
        """What adapters must have in common to be trained together; None if they cannot be."""
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
        """Refuse parameters that exclude each other."""
        if self.head is None and self.head_training != "frozen":
            raise ValueError(
                f"head_training={self.head_training!r} needs a head, but head=None; use "
                "head_training='frozen', or pass a head"
            )

    def _make_coordinates(self, moments: Moments, head: LinearHead | None) -> Coordinates:
        if self.coordinates == "raw":
            return raw_coordinates(moments)
        return whitened_coordinates(moments, head)

    def _train(self, problem: Problem) -> Self:
        """Train by mini-batches."""
        warn_of_large_mean(problem.moments)
        with epochs_bar(self.max_epochs, self.verbose) as bar:
            try:
                (outcome,) = fit_members([self._make_member(problem)], lambda _: bar.update())
            except torch.linalg.LinAlgError as failure:
                raise diverged(self._rates(problem.coordinates).lr) from failure
        self._take(outcome)
        for doubt in outcome.run.warnings(self.max_epochs):
            warnings.warn(doubt, stacklevel=3)
        return self


def _check_groups(groups: ArrayLike) -> NDArray[Any]:
    """Check the groups of the rows, strings or numbers (n_samples,)."""
    try:
        numbers = check_array(as_array(groups), dtype=None, ensure_2d=False, input_name="groups")
        np.unique(numbers)
        return column_or_1d(numbers)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"groups cannot be read ({error}): pass one string or one number for each row"
        ) from error


def comparable(value: Any) -> Any:
    """Give a stand-in for a parameter's value that can be compared and hashed.

    Parameters
    ----------
    value : object
        Value of a parameter.

    Returns
    -------
    object
        Equal for values of equal content.
    """
    if isinstance(value, str | Number | None):
        return value
    try:
        return joblib.hash(value)
    except (PicklingError, TypeError, AttributeError):  # such as a lambda
        pass
    if isinstance(value, BaseEstimator):
        parameters = sorted(value.get_params(deep=False).items())
        return type(value), *((name, comparable(part)) for name, part in parameters)
    if isinstance(value, list | tuple):
        return tuple(comparable(part) for part in value)
    return value if isinstance(value, Hashable) else object()  # like nothing else


def _completed(doc: str, defaults: dict[str, str]) -> str:
    """Add what all have in common to the docstring of a class."""
    title = "Parameters\n----------"
    intro, _, rest = doc.partition(f"{title}\n")
    own, _, notes = rest.partition("\n\n")
    head, common, attributes = map(
        inspect.cleandoc, (_HEAD_PARAMETER, _COMMON_PARAMETERS, _ATTRIBUTES)
    )
    parameters = [title, head, own, common.format_map(defaults)]
    sections = [intro.rstrip(), "\n".join(filter(None, parameters)), attributes, notes]
    return "\n\n".join(filter(None, sections))


_HEAD_PARAMETER = """
    head : LinearHead, linear estimator, {"logistic", "ridge"} or None, default="logistic"
        The linear head that reads the embeddings. A LinearHead, and a fitted estimator in
        ``sklearn.frozen.FrozenEstimator``, are used as they are. Any other estimator, such as
        ``LogisticRegression(C=0.1)``, is cloned and fitted first, even if it has been fitted
        already, as scikit-learn does with sub-estimators, to the embeddings of the rows that are
        trained on; its own regularisation depends on their scale. "logistic" and "ridge" are
        probes that are fitted to these embeddings after standardisation. None trains for the
        penalty alone. In a cross-validation, estimators and probes are fitted to the training
        rows of each fold; a frozen head that was fitted to all rows has seen the validation
        rows, so its scores are too high."""

_COMMON_PARAMETERS = """
    balance : {{"ema", "cumulative"}} or None, default={balance}
        How task loss and penalty are balanced, see :class:`~isoadapt.losses.JointLoss`; None
        adds them as they are.
    smoothing : float, default={smoothing}
        How fast the moving means of "ema" follow, in (0, 1].
    network : {{"linear", "mlp"}}, default={network}
        One linear layer, or that plus a hidden layer of the same width beside it.
    head_training : {{"frozen", "joint", "alternating"}}, default={head_training}
        Whether the head is trained too: with the adapter, or in every other epoch.
    coordinates : {{"whitened", "raw"}}, default={coordinates}
        Coordinates of the embeddings in which the adapter is trained; the fitted map is in the
        embeddings' own either way. "raw" is unsuitable where the mean is much larger than the
        spread; centre the embeddings first. Both are in units of the embeddings' size, so that
        training does not depend on scale.
    ridge : float or "auto", default={ridge}
        Weight, in the task loss, of the mean squared change of the head's outputs relative to the
        embeddings before training. It keeps predictions stable where rows are few: a larger ridge
        allows less change, and 0, the loss of the papers, allows any. Logits are compared after
        subtracting their mean over the classes, and summed over the classes; values of a
        regression are in units of their standard deviations, and averaged over the outputs.
        "auto" estimates it by an F test of whether the task loss can be lowered by more than
        noise: with F the statistic of a regression of the loss's gradient on the embeddings, and
        q its 0.95 quantile without any relation, outputs may change by the share s = 1 - q/F, at
        least 0.01, of their best step. The ridge is (1 - s) / s for a regression and
        (1 - s) / (4 s) for a classifier. Its maximum, 99 and 24.75, is reached if there are no
        more rows than dimensions, and usually for a head that was fitted to the same rows.
    lr : float or "auto", default={lr}
        Learning rate of AdamW. "auto" is 0.001, but 0.01 for the outputs that the head does not
        read, where one linear layer is trained in whitened coordinates under a frozen head.
    lr_schedule : {{"linear", "constant"}}, default={lr_schedule}
        "linear" lowers the learning rate from epoch to epoch, from `lr` in the first to
        ``lr / max_epochs`` in the last.
    batch_size : int, default={batch_size}
        Largest size of a mini-batch.
    max_epochs : int, default={max_epochs}
        Passes over the training rows at most.
    weight_decay : float, default={weight_decay}
        Weight decay of AdamW.
    validation_fraction : float or None, default={validation_fraction}
        Fraction of the distinct rows, in [0, 1), that is held out to choose the epoch, stratified
        for classifiers. If the head is fitted here and there are fewer than 10 rows for each
        dimension, head and adapter are then fitted again to all rows, for ``best_epoch_`` epochs;
        no rows judge this second fit. If 0 or None, or if either part would have fewer than 4
        rows, all rows are trained on and the last epoch is kept.
    patience : int or None, default={patience}
        Training stops after this many epochs in which no epoch replaced the one to be kept; None
        never stops early.
    scoring : str, callable or None, default={scoring}
        The task's metric, as in scikit-learn; None: accuracy or R². The last epoch whose score is
        within one bootstrap standard error of the best is kept, with or without a penalty. A
        warning is issued if the embeddings before training score higher than that epoch by more
        than one standard error.
    device : str, default={device}
        Where to train: "cpu", "cuda" and so on; "auto" is the GPU where there is one.
    random_state : int, RandomState instance or None, default={random_state}
        Seeds split, shuffling, bootstrap and the start of a hidden layer.
    verbose : int, default={verbose}
        Above 0, a progress bar is shown on a terminal."""

_ATTRIBUTES = """
    Attributes
    ----------
    map_ : Affine or ResidualMLP
        The fitted map.
    head_ : LinearHead or None
        The head that reads its outputs; trained with the adapter unless ``head_training`` is
        "frozen".
    history_ : list of dict
        One entry for each epoch of the fit that chose the epoch: "epoch", "train_loss" and "dur"
        (seconds). With validation rows also "valid_score" (the task's metric) and "valid_cost"
        (the weighted penalty of the validation rows, with moments such as Σ_S taken from the rows
        that are trained on), and a first entry for epoch 0, before training, that has only these.
        With an exact solver, entries hold "iteration" and "loss".
    ridge_ : float
        The ridge used; that of the second fit if there was one.
    n_iter_ : int
        Epochs or iterations run.
    best_epoch_ : int
        Epoch whose weights were kept, from 1; not with an exact solver."""
