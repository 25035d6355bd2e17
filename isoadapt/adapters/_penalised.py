"""Adapters trained by a joint loss: the task's under a linear head, and a penalty."""

from abc import abstractmethod
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import _fit_context
from sklearn.metrics import check_scoring, get_scorer_names
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from isoadapt._torch import resolve_device
from isoadapt.adapters._base import BaseAdapter, check_spread
from isoadapt.adapters._closed_form import row_space
from isoadapt.adapters._exact import solve_exact
from isoadapt.adapters._linalg import descending_eigh
from isoadapt.adapters._maps import Affine, Floats, map_rows
from isoadapt.adapters._minibatch import (
    AdapterNet,
    Alternation,
    Penalty,
    Rows,
    Score,
    Selection,
    classification_loss,
    regression_loss,
    train,
)
from isoadapt.adapters._network import Coordinates, HeadedNetwork, LinearNetwork, MLPNetwork
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead
from isoadapt.losses import JointLoss

_MIN_ROWS = 4  # fewer rows on either side of a split cannot be scored


class PenalisedAdapter(BaseAdapter):
    """Base class of adapters that are trained with a penalty.

    A subclass brings its parameters, ``_make_penalty`` and ``_penalty_weight``, and calls the
    rest of its parameters as here.

    Attributes
    ----------
    map_ : Affine or ResidualMLP
        The fitted map.
    head_ : LinearHead or None
        The head that reads its outputs, trained along unless it is frozen.
    history_ : list of dict
        One entry for each epoch ("minibatch") or iteration ("exact").
    n_iter_ : int
        Epochs or iterations run.
    best_epoch_ : int
        Epoch whose weights were kept, from 1; with the minibatch solver only.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseAdapter._parameter_constraints,
        "balance": [StrOptions({"ema", "cumulative"}), None],
        "smoothing": [Interval(Real, 0, 1, closed="right")],
        "network": [StrOptions({"linear", "mlp"})],
        "head_training": [StrOptions({"frozen", "joint", "alternating"})],
        "coordinates": [StrOptions({"whitened", "raw"})],
        "solver": [StrOptions({"minibatch", "exact"})],
        "ridge": [Interval(Real, 0, None, closed="left")],
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

    balance: str | None
    smoothing: float
    network: str
    head_training: str
    coordinates: str
    solver: str
    ridge: float
    lr: float
    batch_size: int
    max_epochs: int
    weight_decay: float
    validation_fraction: float | None
    patience: int
    scoring: Any
    device: str
    random_state: Any
    verbose: int

    def _maps_affinely(self) -> bool:
        return self.network == "linear"

    @abstractmethod
    def _make_penalty(self) -> Penalty:
        """Return the penalty of a batch."""

    @abstractmethod
    def _penalty_weight(self) -> float:
        """Return the weight of the penalty beside the task loss."""

    @_fit_context(prefer_skip_nested_validation=True)
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
            the head, or if parameters exclude each other.
        """
        rows, labels = self._check_fit_input(X, y)
        check_spread(rows)
        self._check_solver()
        head = self._resolve_head(rows, labels)
        moments = Moments().update(rows)
        coordinates = self._make_coordinates(moments, head)
        targets = None if head is None or labels is None else _targets(head, labels)
        if self.solver == "exact":
            return self._fit_exact(rows, targets, head, moments, coordinates)
        return self._fit_minibatch(rows, labels, targets, head, coordinates)

    def _check_solver(self) -> None:
        if self.head is None and self.head_training != "frozen":
            raise ValueError(
                f"head_training={self.head_training!r} needs a head, but head=None; use "
                "head_training='frozen', or pass a head"
            )
        if self.solver != "exact":
            return
        for name, admissible in (("network", "linear"), ("head_training", "frozen")):
            if getattr(self, name) != admissible:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} has no exact solution: use "
                    f"{name}={admissible!r}, or solver='minibatch'"
                )

    def _make_coordinates(self, moments: Moments, head: LinearHead | None) -> Coordinates:
        """Raw coordinates, or whitened ones turned so that the head's directions come first.

        Turning keeps every penalty and logit but not Adam's step, which is taken entry by
        entry: so the task's gradient, however large, stays in the rows that the head sees and
        does not slow down the others.
        """
        mean, cov = moments.mean.numpy(), moments.covariance().numpy()
        d = len(mean)
        if self.coordinates == "raw" and self.solver != "exact":
            identity = Affine(np.eye(d), np.zeros(d))
            return Coordinates(identity, identity, np.eye(d))
        seen, unseen = row_space(np.zeros((1, d)) if head is None else head.coef_)
        unseen = unseen @ descending_eigh(unseen.T @ cov @ unseen)[1]
        turn = np.concatenate([seen, unseen], axis=1)
        eigenvalues, vectors = descending_eigh(turn.T @ cov @ turn)
        roots = np.sqrt(eigenvalues.clip(min=1e-7 * eigenvalues[0]))
        into = (vectors / roots) @ vectors.T @ turn.T
        start = Affine((vectors * roots) @ vectors.T, turn.T @ mean)
        return Coordinates(Affine(into, -into @ mean), start, turn)

    def _fit_exact(
        self,
        X: NDArray[Any],
        targets: NDArray[Any] | None,
        head: LinearHead | None,
        moments: Moments,
        coordinates: Coordinates,
    ) -> Self:
        self.__dict__.pop("best_epoch_", None)
        weight = self._penalty_weight()
        found = solve_exact(X, targets, head, moments, coordinates, weight, self.ridge)
        self.history_ = [
            {"iteration": number, "loss": loss} for number, loss in enumerate(found.losses)
        ]
        self.n_iter_ = max(found.n_iter, 1)
        return self._set_fitted(found.map, head)

    def _fit_minibatch(
        self,
        X: NDArray[Any],
        y: NDArray[Any] | None,
        targets: NDArray[Any] | None,
        head: LinearHead | None,
        coordinates: Coordinates,
    ) -> Self:
        rng = check_random_state(self.random_state)
        generator = torch.Generator().manual_seed(int(rng.randint(2**31)))
        device = resolve_device(self.device)
        whitened = _tensor(map_rows(coordinates.into, X), device)
        rows = Rows(whitened, None if targets is None else _tensor(targets, device))
        fitting, selection = rows, None
        if self.validation_fraction:
            train_index, valid_index = self._split(targets, len(X), rng)
            score = None
            if head is not None and y is not None:
                score = self._make_score(head, y[valid_index])
            selection = Selection(
                rows.take(torch.from_numpy(valid_index).to(device)),
                score,
                self._penalty_weight(),
                self.patience,
                rng,
            )
            fitting = rows.take(torch.from_numpy(train_index).to(device))
        net = self._make_net(coordinates, head, generator, device, selection)
        best_epoch = train(net, fitting, self.max_epochs, selection, self.verbose)
        self._take_over(net.module_, coordinates, head)
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
            self._make_penalty(),
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

    def _make_score(self, head: LinearHead, y: NDArray[Any]) -> Score:
        """Score the outputs of a head by the task's metric."""
        if self.scoring is None and head.classes_ is not None:
            targets = head.encode(y)
            return lambda outputs, index: float(np.mean(outputs.argmax(1) == targets[index]))
        n_outputs = len(head.coef_)
        reader = LinearHead(np.eye(n_outputs), np.zeros(n_outputs), head.classes_)
        scorer = check_scoring(reader, scoring=self.scoring)
        return lambda outputs, index: float(scorer(reader, outputs, y[index]))

    def _take_over(
        self, module: HeadedNetwork, coordinates: Coordinates, head: LinearHead | None
    ) -> None:
        if any(not bool(parameter.isfinite().all()) for parameter in module.parameters()):
            raise ValueError(
                f"training diverged with lr={self.lr}: weights are no longer finite; choose a "
                "smaller lr, or scale the embeddings"
            )
        if head is not None and self.head_training != "frozen":
            head = LinearHead(*module.head_arrays(), head.classes_)
            head = _turned(head, coordinates.out.T)
        self._set_fitted(module.network.map(0, coordinates), head)


_HISTORY = {"epoch", "dur", "train_loss", "valid_score", "valid_cost"}


def _targets(head: LinearHead, y: NDArray[Any]) -> NDArray[Any]:
    """Class numbers of shape (n,), or values of shape (n, n_outputs)."""
    if head.classes_ is not None:
        return head.encode(y)
    values = np.asarray(y, dtype=np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.shape[1] != len(head.coef_):
        raise ValueError(
            f"y has {values.shape[1]} column(s), but the head has {len(head.coef_)} output(s): "
            "pass as many columns, or let a new head be fitted with head='ridge'"
        )
    return values


def _turned(head: LinearHead | None, turn: Floats) -> LinearHead | None:
    """The same head on embeddings that were multiplied by ``turn.T``."""
    if head is None:
        return None
    return LinearHead(head.coef_ @ turn, head.intercept_, head.classes_)


def _tensor(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    dtype = torch.float32 if array.dtype.kind == "f" else torch.int64
    return torch.as_tensor(array, dtype=dtype, device=device)
