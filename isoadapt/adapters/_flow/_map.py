"""The flow as zuko's transforms, and fitted as a map.

A flow is a chain of blocks, each ActNorm -> permutation -> coupling; then come a permutation that
puts the features back in order, and a last ActNorm.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Transform, constraints
from torch.nn import functional as F
from zuko.transforms import (
    AdditiveTransform,
    ComposedTransform,
    CouplingTransform,
    DependentTransform,
    MonotonicAffineTransform,
    PermutationTransform,
)

from isoadapt.adapters._maps import Floats
from isoadapt.geometry import Moments, dead_dimensions

_FLOOR = 1e-3  # of standard deviations, relative to the largest
_SLOPE = math.exp(-0.5)  # least scale of an affine coupling; the largest is its inverse
_CHUNK = 1024

Coupling = Literal["additive", "affine"]
A = TypeVar("A", Tensor, NDArray[Any])


class Block(NamedTuple, Generic[A]):
    """One block: ActNorm, permutation, and a coupling conditioned by one hidden layer.

    Attributes
    ----------
    log_scale, shift : array of shape (d,)
        ActNorm: x -> exp(log_scale) x + shift.
    order : array of shape (d,)
        Permutation: x -> x[order].
    hidden_weight, hidden_bias : array of shape (n_hidden, d - d // 2) and (n_hidden,)
        Of the conditioner's hidden layer, which reads the first half of the coordinates.
    readout_weight, readout_bias : array of shape (m, n_hidden) and (m,)
        Of its readout: the shifts of the second half, m = d // 2, and below them, in affine
        couplings, as many unbounded log-scales.
    """

    log_scale: A
    shift: A
    order: A
    hidden_weight: A
    hidden_bias: A
    readout_weight: A
    readout_bias: A


class Last(NamedTuple, Generic[A]):
    """What comes after the blocks: a permutation and ActNorm.

    Attributes
    ----------
    order : array of shape (d,)
        Permutation: x -> x[order].
    log_scale, shift : array of shape (d,)
        ActNorm: x -> exp(log_scale) x + shift.
    """

    order: A
    log_scale: A
    shift: A


class Scaling(Transform):
    """ActNorm as a transform, x -> exp(log_scale) x + shift.

    Parameters
    ----------
    log_scale, shift : Tensor of shape (d,)
        One for each feature.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, log_scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.log_scale, self.shift = log_scale, shift

    def _call(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, x, self.log_scale.exp())

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.shift) * (-self.log_scale).exp()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the same for each row: the sum of the log-scales."""
        return self.log_scale.sum().expand(x.shape[:-1])


class Permutation(PermutationTransform):
    """Permutation whose gradient is cheap, x -> x[order].

    Parameters
    ----------
    order : Tensor of shape (d,)
        The permutation.
    """

    def _call(self, x: Tensor) -> Tensor:
        return x.index_select(-1, self.order)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.index_select(-1, self.order.argsort())


class HalfCoupling(CouplingTransform):
    """Coupling that keeps the first half of the coordinates, cut without an index.

    Parameters
    ----------
    meta : callable
        From the first half to the transform of the second.
    n_kept : int
        Width of the first half.
    """

    def __init__(self, meta: Callable[[Tensor], Transform], n_kept: int) -> None:
        Transform.__init__(self)
        self.meta, self.n_kept = meta, n_kept

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cut rows in two."""
        return x[..., : self.n_kept], x[..., self.n_kept :]

    def merge(self, x_a: Tensor, x_b: Tensor, shape: torch.Size) -> Tensor:
        """Join the halves."""
        return torch.cat([x_a, x_b], dim=-1)


def make_transform(
    coupling: str, blocks: Sequence[Block[Tensor]], last: Last[Tensor]
) -> ComposedTransform:
    """Chain the blocks and what comes after them.

    Parameters
    ----------
    coupling : {"additive", "affine"}
        What the second half of the coordinates undergoes.
    blocks : sequence of Block
        The first to be applied first.
    last : Last
        Applied after all blocks.

    Returns
    -------
    ComposedTransform
        From rows to z; its ``inv`` is the way back.
    """
    steps = [step for block in blocks for step in block_steps(coupling, block)]
    return ComposedTransform(*steps, Permutation(last.order), Scaling(last.log_scale, last.shift))


def block_steps(coupling: str, block: Block[Tensor]) -> tuple[Transform, Transform, Transform]:
    """Give the transforms of a block.

    Parameters
    ----------
    coupling : {"additive", "affine"}
        What the coupling does.
    block : Block
        Its parameters.

    Returns
    -------
    tuple of Transform
        ActNorm, permutation and coupling.
    """
    coupled = HalfCoupling(_conditioner(coupling, block), block.hidden_weight.shape[1])
    return Scaling(block.log_scale, block.shift), Permutation(block.order), coupled


def _conditioner(coupling: str, block: Block[Tensor]) -> Callable[[Tensor], Transform]:
    """From the kept half to the transform of the other, conditioned on it."""

    def condition(kept: Tensor) -> Transform:
        hidden = F.elu(F.linear(kept, block.hidden_weight, block.hidden_bias))
        parameters = F.linear(hidden, block.readout_weight, block.readout_bias)
        if coupling == "additive":
            return DependentTransform(AdditiveTransform(parameters), 1)
        shift, scale = parameters.chunk(2, dim=-1)
        return DependentTransform(MonotonicAffineTransform(shift, scale, slope=_SLOPE), 1)

    return condition


def log_likelihood(transform: ComposedTransform, X: Tensor) -> Tensor:
    """Log-likelihood of rows that the transform should make standard normal.

    Parameters
    ----------
    transform : ComposedTransform
        The flow.
    X : Tensor of shape (n, d)
        Rows.

    Returns
    -------
    Tensor of shape (n,)
        In nats.
    """
    Z, log_det = transform.call_and_ladj(X)
    return standard_normal(Z) + log_det


def standard_normal(Z: Tensor) -> Tensor:
    """Log-density of the standard normal distribution.

    Parameters
    ----------
    Z : Tensor of shape (..., d)
        Points.

    Returns
    -------
    Tensor of shape (...)
        In nats.
    """
    return -0.5 * (Z.square().sum(-1) + Z.shape[-1] * math.log(2 * math.pi))


class FlowMap(NamedTuple):
    """A fitted flow: a map and a density.

    Attributes
    ----------
    coupling : {"additive", "affine"}
        What couplings do.
    blocks : tuple of Block
        Of float64 arrays, the order of integers.
    last : Last
        What comes after them, of such arrays too.
    """

    coupling: Coupling
    blocks: tuple[Block[NDArray[Any]], ...]
    last: Last[NDArray[Any]]

    @property
    def n_features_out(self) -> int:
        """Width of the outputs."""
        return len(self.last.shift)

    def __call__(self, X: Floats) -> Floats:
        return self.transform()(torch.tensor(X)).numpy()

    def inverted(self) -> Callable[[Floats], Floats]:
        """Give the way back.

        Returns
        -------
        callable
            From z to embeddings, exact up to rounding.
        """
        back = self.transform().inv
        return lambda Z: back(torch.tensor(Z)).numpy()

    def log_likelihood(self, X: Floats) -> Floats:
        """Log-likelihood of rows.

        Parameters
        ----------
        X : ndarray of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats.
        """
        return log_likelihood(self.transform(), torch.tensor(X)).numpy()

    def transform(self) -> ComposedTransform:
        """Build the transform of float64 tensors.

        Returns
        -------
        ComposedTransform
            From rows to z.
        """
        blocks = [Block(*map(torch.tensor, block)) for block in self.blocks]
        return make_transform(self.coupling, blocks, Last(*map(torch.tensor, self.last)))

    def calibrated(self, X: NDArray[Any]) -> "FlowMap":
        """Give the last ActNorm its maximum-likelihood value: outputs of mean 0 and variance 1.

        Parameters
        ----------
        X : ndarray of shape (n_samples, n_features)
            Rows, taken in chunk by chunk.

        Returns
        -------
        FlowMap
            The same but for the last ActNorm.
        """
        transform, moments = self.transform(), Moments()
        for start in range(0, len(X), _CHUNK):
            moments.update(transform(torch.tensor(X[start : start + _CHUNK], dtype=torch.float64)))
        variances = moments.covariance().diagonal() * (1 - 1 / len(X))
        mean, deviation = moments.mean.numpy(), floored(variances.sqrt(), 1.0).numpy()
        order, log_scale, shift = self.last
        last = Last(order, log_scale - np.log(deviation), (shift - mean) / deviation)
        return self._replace(last=last)


def floored(deviations: Tensor, dead: float | Tensor) -> Tensor:
    """Raise small standard deviations to a share of the largest.

    Parameters
    ----------
    deviations : Tensor of shape (d,)
        Standard deviations.
    dead : float or Tensor of shape ()
        What takes the place of those without variance.

    Returns
    -------
    Tensor of shape (d,)
        At least 1e-3 of the largest, but for those of constant features.
    """
    raised = deviations.clamp(min=_FLOOR * deviations.max())
    constant = dead_dimensions(deviations.double().square())
    return torch.where(constant, torch.as_tensor(dead).to(raised), raised)
