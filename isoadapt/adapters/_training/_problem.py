"""The input of a fit with its coordinates, its penalty, what describes a fit, and its result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, softmax
from scipy.stats import t as student
from sklearn.utils.extmath import svd_flip
from torch import Tensor

from isoadapt.adapters._linalg import descending_eigh, oas_shrinkage, row_space, shrink
from isoadapt.adapters._maps import Affine, Floats, ResidualMLP, map_rows
from isoadapt.adapters._rows import Batches, fold_numbers, strata
from isoadapt.adapters._training._epoch_choice import Run, Score, TargetUnits
from isoadapt.adapters._training._networks import LinearNetwork, Rates
from isoadapt.geometry import Moments
from isoadapt.geometry._chunks import RowSketch
from isoadapt.geometry._spread import dead_dimensions
from isoadapt.heads import LinearHead

if TYPE_CHECKING:
    from isoadapt.adapters._penalised import PenalisedAdapter

_CHUNK = 8192
_CLAMP = 1e-7  # smallest eigenvalue, relative to the largest
_LEVEL = 0.95  # of the quantile that the agreement on left-out rows must exceed
_N_FOLDS = 5
_RIDGES = np.geomspace(99, 1 / 99, 17)  # (1 - s) / s for shares s from 0.01 to 0.99


class Coordinates(NamedTuple):
    """The coordinates in which a network is trained, z = s Q network(P(h - μ))."""

    into: Affine  # h -> g = P(h - μ), the network's input
    start: Affine  # g -> Qᵀh / s, the network at the start of training
    out: Floats  # the rotation Q, (d, d), from the network's output to adapted embeddings
    scale: float  # s; makes network and learning rate independent of the scale of the embeddings
    # Whether each input has no variance, (d,). Such inputs are zero in training, so that the
    # weights on them do not change.
    dead: NDArray[np.bool_]
    deviations: Floats | None = None  # of the inputs, (d,), if these are uncorrelated; else None
    n_read: int = 0  # the head reads the first n_read outputs of the network; 0: not known

    def embedding_map(self, network: Affine | ResidualMLP) -> Affine | ResidualMLP:
        """Convert a map from g to the network's output into the map of embeddings."""
        outer = Affine(self.scale * self.out, np.zeros(len(self.out)))
        linear = network if isinstance(network, Affine) else network.linear
        linear = outer.after(linear.after(self.into))
        if isinstance(network, Affine):
            return linear
        return ResidualMLP(linear, network.hidden.after(self.into), outer.matrix @ network.readout)

    def inner_head(self, head: LinearHead) -> LinearHead:
        """Return the head on the network's outputs that equals `head` on adapted embeddings."""
        return head._with(self.scale * (head.coef_ @ self.out), head.intercept_)

    def outer_head(self, head: LinearHead) -> LinearHead:
        """Return the head on adapted embeddings that equals `head` on the network's outputs."""
        return head._with(head.coef_ @ self.out.T / self.scale, head.intercept_)


def raw_coordinates(moments: Moments) -> Coordinates:
    """Scale embeddings by s, the size of their second moment, without centring or rotation."""
    d = len(moments)
    scale = _size(moments.second_moment().numpy())
    zeros = np.zeros(d)
    into, identity = Affine(np.eye(d) / scale, zeros), Affine(np.eye(d), zeros)
    return Coordinates(into, identity, np.eye(d), scale, np.zeros(d, dtype=bool))


def whitened_coordinates(moments: Moments, head: LinearHead | None) -> Coordinates:
    """Whiten the input, and rotate the output so that the head's row space comes first.

    The rotation changes no penalty and no logit. Adam's step, however, is taken entry by entry:
    with the rotation, a large gradient of the task stays in the rows of the head's row space and
    does not slow down the others. The inputs are principal components for the same reason. They are
    divided by the roots of their shrunk variances, so that with many rows nearly all have unit
    variance, and with few rows directions of little variance stay small. s is the largest standard
    deviation.
    """
    mean, cov = moments.mean.numpy(), moments.covariance().numpy()
    inside, outside = row_space(np.zeros((1, len(mean))) if head is None else head.coef_)
    outside = outside @ descending_eigh(outside.T @ cov @ outside)[1]
    rotation, _ = svd_flip(np.concatenate([inside, outside], axis=1), None)  # fixes the signs
    eigenvalues, vectors = descending_eigh(rotation.T @ cov @ rotation)
    shrunk = shrink(eigenvalues, oas_shrinkage(moments))
    roots = np.sqrt(shrunk.clip(min=_CLAMP * shrunk[0]))
    into, scale = (vectors / roots).T @ rotation.T, float(np.sqrt(eigenvalues[0]))
    return Coordinates(
        into=Affine(into, -into @ mean),
        start=Affine(vectors * (roots / scale), rotation.T @ mean / scale),
        out=rotation,
        scale=scale,
        dead=dead_dimensions(eigenvalues),
        deviations=np.sqrt(eigenvalues) / roots,
        n_read=0 if head is None else inside.shape[1],
    )


def _size(cov: Floats) -> float:
    """Root of the root mean square of the eigenvalues; it has the unit of a standard deviation."""
    largest = np.abs(cov).max()  # squares of small numbers would underflow
    return float(np.sqrt(largest * np.sqrt(((cov / largest) ** 2).sum() / len(cov))))


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """The input of a fit, shared by all members with the same rows and split."""

    X: NDArray[Any]  # embeddings, (n_samples, n_features)
    y: NDArray[Any] | None  # labels or values, (n_samples,) or (n_samples, n_outputs)
    targets: NDArray[Any] | None  # y as class numbers (n_samples,), or values or booleans as y
    head: LinearHead | None  # on the adapted embeddings
    moments: Moments  # of the training rows
    coordinates: Coordinates  # in which the network is trained, computed from the moments
    fitting: NDArray[np.int64]  # numbers of the training rows
    validating: NDArray[np.int64] | None  # numbers of the rows that only choose the epoch
    seed: int  # of the generator that shuffles and draws the initial weights
    rng: np.random.RandomState  # draws the bootstrap samples; each member copies it
    weights: Floats | None = None  # frequencies of the rows, (n_samples,); None: all are 1
    groups: NDArray[np.int64] | None = None  # numbers of the rows' groups, (n_samples,)
    sketch: RowSketch | None = None  # of the training rows
    weighted: bool = False  # whether the user gave weights, rather than only repeated rows
    features: dict[str, Any] = field(default_factory=dict)  # number and names, for a search

    @cached_property
    def inputs_root(self) -> Floats:
        """A root R (d, d) of the inputs' covariance RRᵀ, or its diagonal (d,) if uncorrelated."""
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
            None if weights is None else weights[self.fitting],
            None if self.groups is None else self.groups[self.fitting],
        )

    def inputs(self) -> Floats:
        """Return the network's inputs (n, d), 0 in training rows where there is no variance."""
        points = map_rows(self.coordinates.into, self.X)
        points[np.ix_(self.fitting, self.coordinates.dead)] = 0
        return points


class Penalty:
    """Penalty of adapted points: `loss` maps points (K, n, d) to one value per member (K,).

    `shared` says whether it is the same for all members that are trained together.
    """

    depends_on_shifts: ClassVar[bool] = True
    """Whether the penalty changes when all points are shifted."""

    def __init__(self, loss: Callable[..., Tensor], shared: bool = False) -> None:
        self.loss, self.shared = loss, shared

    def join(self, others: Sequence[Self]) -> "Penalty | None":
        """Return one penalty for the members of this and the others; None: call each on its own."""
        return self if self.shared else None

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        """Prepare for an epoch with the present network; the default does nothing."""

    def on_validation(self, network: LinearNetwork) -> Tensor | None:
        """Return the penalties (K,) of the validation rows; None if these must be adapted first."""
        return None

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        """Return the penalties (K,) of adapted points (K, n, d).

        Targets are class numbers (n,), or values or booleans (n, n_outputs), with a leading axis K
        if the members have different rows. `network` is the network that adapted the points.
        """
        return self.loss(points)


class SeparatePenalties(Penalty):
    """Penalties of members, each called with the points and the network of its own member."""

    def __init__(self, penalties: Sequence[Penalty]) -> None:
        self.penalties = penalties

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        for k, penalty in enumerate(self.penalties):
            penalty.refresh(network.member(k), batches.member(k))

    def on_validation(self, network: LinearNetwork) -> Tensor | None:
        values = [each.on_validation(network.member(k)) for k, each in enumerate(self.penalties)]
        known = [value for value in values if value is not None]
        return torch.cat(known) if len(known) == len(values) else None

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        own = targets is not None and targets.shape[:2] == points.shape[:2]
        values = []
        for k, penalty in enumerate(self.penalties):
            labels = targets[k : k + 1] if own and targets is not None else targets
            values.append(penalty(points[k : k + 1], labels, network.member(k)))
        return torch.cat(values)


def join_penalties(penalties: Sequence[Penalty]) -> Penalty:
    """Return one penalty for the members that have the given ones."""
    if len(penalties) == 1:
        return penalties[0]
    return penalties[0].join(penalties[1:]) or SeparatePenalties(penalties)


@dataclass(frozen=True, eq=False, kw_only=True)
class Member:
    """One fit: an adapter, its problem, and what is computed from both."""

    adapter: "PenalisedAdapter"
    problem: Problem
    penalty: Penalty  # of the adapted rows
    ridge: float  # weight, in the task loss, of the mean squared change of the head's outputs
    rates: Rates
    score: Score | None = None  # None: the epoch with the lowest penalty is the best
    n_epochs: int | None = None  # number of epochs to run when there are no validation rows


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of training a member: its epochs with the fitted map and head, or the error."""

    run: Run
    ridge: float
    map: Affine | ResidualMLP | None = None
    head: LinearHead | None = None
    error: ValueError | None = None
    sketch: RowSketch | None = None  # of the rows that the map was fitted to


def automatic_ridge(
    X: NDArray[Any],
    targets: NDArray[Any],
    outputs: Floats,
    weights: Floats | None = None,
    groups: NDArray[np.int64] | None = None,
) -> float:
    """Estimate the weight of the mean squared change of the head's outputs in the task loss.

    The step of the outputs that lowers the task loss is a regression of its negative gradient, the
    residual, on the embeddings X (n, d). The share s of it that is taken is the smallest one whose
    squared error on left-out residuals is within a standard error of the least. It is 0.01 unless
    step and residual agree on left-out rows beyond chance. The ridge shrinks by s the step that
    minimises a quadratic upper bound of the task loss. It is (1 - s) / s for the mean squared
    error, (1 - s) / (4 s) for the cross-entropy, whose curvature is at most 1/2, and half of that
    for the binary cross-entropy. `outputs` (n, n_outputs) have the units of the targets, and
    `weights` (n,) have mean 1.
    """
    classes = None if targets.dtype.kind == "f" else strata(targets)
    folds = fold_numbers(X, classes, groups, _N_FOLDS)
    weights = np.ones(len(X)) if weights is None else weights
    points, residuals = _whitened(X, Moments().update(X, weights)), _residuals(targets, outputs)
    units = np.arange(len(X)) if groups is None else groups
    agreement, gains = np.zeros(units.max() + 1), np.zeros((len(_RIDGES), units.max() + 1))
    for fold in range(_N_FOLDS if folds.any() else 0):
        held, rows = folds == fold, points[folds != fold]
        shares = weights[folds != fold, None] / weights[folds != fold].sum()
        eigenvalues, axes = np.linalg.eigh((shares * rows).T @ rows)
        crossed = axes.T @ ((shares * rows).T @ residuals[folds != fold])
        found = points[held] @ axes
        for place, ridge in enumerate(_RIDGES):
            step = found @ (crossed / (eigenvalues + ridge)[:, None])
            products = weights[held] * (step * residuals[held]).sum(axis=1)
            gain = 2 * products - weights[held] * (step**2).sum(axis=1)
            gains[place] += np.bincount(units[held], gain, len(agreement))
            if place == len(_RIDGES) // 2:
                agreement += np.bincount(units[held], products, len(agreement))
    # Each pair of rows counts twice in the sum, which doubles its variance.
    quantile = student.ppf(_LEVEL, max(len(np.unique(units)) - 1, 1))
    level = np.sqrt(2 * (agreement**2).sum()) * quantile
    lost = gains[gains.sum(axis=1).argmax()] - gains
    enough = lost.sum(axis=1) <= np.sqrt((lost**2).sum(axis=1))
    ridge = _RIDGES[enough.argmax() if agreement.sum() > level else 0]
    return float(ridge / {"f": 1, "i": 4, "b": 8}[targets.dtype.kind])


def _whitened(X: NDArray[Any], moments: Moments) -> Floats:
    """Rows in coordinates divided by the roots of their shrunk variances, and a column of ones."""
    eigenvalues, vectors = descending_eigh(moments.covariance().numpy())
    live = ~dead_dimensions(eigenvalues)
    roots = np.sqrt(shrink(eigenvalues, oas_shrinkage(moments))[live])
    centred = X - moments.mean.numpy()
    return np.column_stack([centred @ (vectors[:, live] / roots), np.ones(len(X))])


def _residuals(targets: NDArray[Any], outputs: Floats) -> Floats:
    """Return the gradient of each row's task loss with respect to its outputs, up to a factor."""
    if targets.ndim == 2:
        return (expit(outputs) if targets.dtype == bool else outputs) - targets
    residuals = softmax(outputs, axis=1)
    residuals[np.arange(len(targets)), targets] -= 1
    return residuals


@torch.no_grad()
def outputs_covariance(network: LinearNetwork, batches: Batches, n_rows: int) -> Tensor:
    """Return the covariance (K, d, d) of the outputs, from at most `n_rows` evenly spaced rows."""
    n = batches.index.shape[-1]
    index = batches.index[..., :: -(-n // n_rows)]
    moments = [Moments() for _ in network.weight]
    for chunk in index.split(_CHUNK, dim=-1):
        rows = batches.rows.take(chunk)
        weights = None if rows.weights is None else rows.weights.expand(len(moments), -1)
        for k, points in enumerate(network(rows.X)):
            moments[k].update(points, None if weights is None else weights[k])
    return torch.stack([member.covariance() for member in moments]).to(network.weight)
