"""Adapters trained by a joint loss: the task's under a linear head, and a penalty."""

import inspect
from abc import abstractmethod
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import _fit_context
from sklearn.metrics import get_scorer_names
from sklearn.model_selection import train_test_split
from sklearn.utils._param_validation import Interval, StrOptions

from isoadapt._torch import resolve_device
from isoadapt.adapters._base import (
    BaseAdapter,
    check_spread,
    own_random_state,
    whole_or_nothing,
)
from isoadapt.adapters._coordinates import Coordinates, raw_coordinates, whitened_coordinates
from isoadapt.adapters._maps import Floats, map_rows
from isoadapt.adapters._minibatch import (
    AdapterNet,
    Penalty,
    Rows,
    classification_loss,
    regression_loss,
    to_device,
)
from isoadapt.adapters._network import HeadedNetwork, LinearNetwork, MLPNetwork
from isoadapt.adapters._training import Alternation, Selection, make_score, train
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead
from isoadapt.losses import JointLoss

_MIN_ROWS = 4  # fewer rows on either side of a split cannot be scored


class Problem(NamedTuple):
    """What there is to fit.

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
        Of X.
    coordinates : Coordinates
        In which the network is trained.
    """

    X: NDArray[Any]
    y: NDArray[Any] | None
    targets: NDArray[Any] | None
    head: LinearHead | None
    moments: Moments
    coordinates: Coordinates


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
        "lr": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 2, None, closed="left")],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="left"), None],
        "patience": [Interval(Integral, 1, None, closed="left")],
        "scoring": [StrOptions(set(get_scorer_names())), callable, None],
        "device": [str],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    head: Any = field(default="logistic", kw_only=False)
    balance: str | None = None
    smoothing: float = 0.15
    network: str = "linear"
    head_training: str = "frozen"
    coordinates: str = "raw"
    lr: float = 1e-3
    batch_size: int = 64
    max_epochs: int = 30
    weight_decay: float = 0.0
    validation_fraction: float | None = 0.3
    patience: int = 10
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
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Fit to embeddings.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Embeddings.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), default=None
            Labels or values; not used where ``head`` is None.

        Returns
        -------
        Self
            The fitted adapter.

        Raises
        ------
        ValueError
            If X is constant, has a constant column or is not finite, if y has labels unknown to
            the head, if parameters exclude each other or if training diverges.
        """
        rows, labels = self._check_fit_input(X, y)
        check_spread(rows)
        self._check_combination()
        head = self._resolve_head(rows, labels)
        moments = Moments().update(rows)
        targets = None if head is None or labels is None else head.targets(labels)
        coordinates = self._make_coordinates(moments, head)
        return self._solve(Problem(rows, labels, targets, head, moments, coordinates))

    def _check_combination(self) -> None:
        """Refuse parameters that exclude each other."""
        if self.head is None and self.head_training != "frozen":
            raise ValueError(
                f"head_training={self.head_training!r} needs a head, but head=None; use "
                "head_training='frozen', or pass a head"
            )

    def _make_coordinates(self, moments: Moments, head: LinearHead | None) -> Coordinates:
        if self.coordinates == "raw":
            return raw_coordinates(len(moments))
        return whitened_coordinates(moments, head)

    def _solve(self, problem: Problem) -> Self:
        """Train by mini-batches."""
        X, head, into = problem.X, problem.head, problem.coordinates.into
        rng = own_random_state(self.random_state)
        generator = torch.Generator().manual_seed(int(rng.randint(2**31)))
        device = resolve_device(self.device)
        targets = None if problem.targets is None else to_device(problem.targets, device)
        rows = Rows(to_device(map_rows(into, X), device), targets)
        fitting, selection = rows, None
        if self.validation_fraction:
            train_index, valid_index = self._split(problem.targets, len(X), rng)
            score = None
            if head is not None and problem.y is not None:
                score = make_score(head, problem.y[valid_index], self.scoring)
            selection = Selection(
                rows.take(torch.from_numpy(valid_index).to(device)),
                score,
                self._penalty_weight(),
                self.patience,
                rng,
            )
            fitting = rows.take(torch.from_numpy(train_index).to(device))
        penalty = self._make_penalty(problem, device)
        net = self._make_net(problem.coordinates, head, generator, device, penalty, selection)
        try:
            best_epoch = train(net, fitting, self.max_epochs, selection, self.verbose)
        except torch.linalg.LinAlgError as error:
            raise self._diverged() from error
        self._take_over(net.module_, problem.coordinates, head)
        self.best_epoch_ = best_epoch
        self.n_iter_ = len(net.history)
        self.history_ = [
            {key: value for key, value in row.items() if key in _HISTORY} for row in net.history
        ]
        return self

    def _make_net(
        self,
        coordinates: Coordinates,
        head: LinearHead | None,
        generator: torch.Generator,
        device: torch.device,
        penalty: Penalty,
        selection: Selection | None,
    ) -> AdapterNet:
        network = (
            LinearNetwork(1, coordinates.start)
            if self.network == "linear"
            else MLPNetwork(1, coordinates.start, generator)
        )
        module = HeadedNetwork(network, _turned(head, coordinates.out))
        module.train_parts(network=True, head=self.head_training == "joint")
        callbacks: list[tuple[str, Any]] = []
        if self.head_training == "alternating":
            callbacks.append(("alternation", Alternation()))
        if selection is not None:
            callbacks.append(("selection", selection))
        return AdapterNet(
            module,
            JointLoss(self._penalty_weight(), self.balance, self.smoothing),
            regression_loss if self._head_kind() == "regressor" else classification_loss,
            penalty,
            generator,
            optimizer=torch.optim.AdamW,
            optimizer__weight_decay=self.weight_decay,
            optimizer__fused=True,
            lr=self.lr,
            batch_size=self.batch_size,
            callbacks=callbacks,
            callbacks__train_loss=None,
            callbacks__valid_loss=None,
            callbacks__print_log=None,
            device=device,
            verbose=0,
        )

    def _split(
        self, targets: NDArray[Any] | None, n: int, rng: np.random.RandomState
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows to train on and rows to validate on, stratified; too few rows serve as both."""
        rows = np.arange(n)
        n_valid = round(n * float(self.validation_fraction or 0))
        if min(n_valid, n - n_valid) < _MIN_ROWS:
            return rows, rows
        stratify = None
        if self._head_kind() == "classifier":
            counts = np.bincount(targets)  # type: ignore[arg-type]
            counts = counts[counts > 0]
            if counts.min() >= 2 and len(counts) <= min(n_valid, n - n_valid):
                stratify = targets
        train_rows, valid_rows = train_test_split(
            rows, test_size=n_valid, stratify=stratify, random_state=rng
        )
        return np.sort(train_rows), np.sort(valid_rows)

    def _take_over(
        self, module: HeadedNetwork, coordinates: Coordinates, head: LinearHead | None
    ) -> None:
        if any(not bool(parameter.isfinite().all()) for parameter in module.parameters()):
            raise self._diverged()
        if head is not None and self.head_training != "frozen":
            head = LinearHead(*module.head_arrays(), head.classes_)
            head = _turned(head, coordinates.out.T)
        self._set_fitted(module.network.map(0, coordinates), head)

    def _diverged(self) -> ValueError:
        return ValueError(
            f"training diverged with lr={self.lr}: weights are no longer finite; choose a "
            "smaller lr, or scale the embeddings"
        )


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
    head : LinearHead, fitted linear estimator, {"logistic", "ridge"} or None, default="logistic"
        What reads the embeddings. A name fits it to all rows first, so that the rows that choose
        the epoch have been seen by it: pass a head that was fitted elsewhere for a choice that
        means more. None leaves the penalty alone. Wrap a fitted estimator in
        ``sklearn.frozen.FrozenEstimator``, so that it survives ``clone``."""

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
        embeddings' own either way. "raw" is not for means far beyond the spread: subtract them.
    lr : float, default={lr}
        Learning rate of AdamW.
    batch_size : int, default={batch_size}
        Largest size of a mini-batch.
    max_epochs : int, default={max_epochs}
        Passes over the training rows at most.
    weight_decay : float, default={weight_decay}
        Weight decay of AdamW.
    validation_fraction : float or None, default={validation_fraction}
        Share of the rows that chooses the epoch, in [0, 1), stratified for classifiers. 0 or
        None keeps the last epoch. Fewer than 4 rows on a side: all rows serve for both.
    patience : int, default={patience}
        Epochs without a new choice before training stops.
    scoring : str, callable or None, default={scoring}
        The task's metric, as in scikit-learn; None: accuracy or R². Among the epochs within one
        bootstrap standard error of the best, the one with the lowest weighted penalty is kept.
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
        The head that reads its outputs, trained along unless it is frozen.
    history_ : list of dict
        One entry for each epoch: "epoch", "train_loss", "valid_score" (the task's metric),
        "valid_cost" (the weighted penalty on the validation rows; what a penalty takes from the
        moments of all rows, such as Σ_S, stays that) and "dur" (seconds). Where there is an
        exact solver, it leaves "iteration" and "loss" for each iteration.
    n_iter_ : int
        Epochs or iterations run.
    best_epoch_ : int
        Epoch whose weights were kept, from 1; not with an exact solver."""

_HISTORY = {"epoch", "dur", "train_loss", "valid_score", "valid_cost"}


def _turned(head: LinearHead | None, turn: Floats) -> LinearHead | None:
    """The same head on embeddings that were multiplied by ``turn.T``."""
    if head is None:
        return None
    return LinearHead(head.coef_ @ turn, head.intercept_, head.classes_)
