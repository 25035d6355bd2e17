"""The transforms of a flow, and a fitted flow as a map."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Transform, constraints
from torch.nn import functional as F

from isoadapt._utils.imports import import_optional
from isoadapt.adapters._maps import Floats, map_rows
from isoadapt.geometry._spread import dead_dimensions

try:
    from zuko.transforms import (
        AdditiveTransform,
        ComposedTransform,
        CouplingTransform,
        DependentTransform,
        MonotonicAffineTransform,
        PermutationTransform,
    )
except ImportError:
    import_optional("zuko", feature="FlowAdapter", extra="flow")
    raise

_FLOOR = 1e-3  # least standard deviation, relative to the largest
_SLOPE = math.exp(-0.5)  # least scale of an affine coupling; the largest is its inverse


class Block(NamedTuple):
    """Tensors or arrays of a block: ActNorm, permutation, coupling with one hidden layer."""

    log_scale: Any  # ActNorm, (d,): x -> exp(log_scale) x + shift
    shift: Any  # (d,)
    order: Any  # permutation, (d,): x -> x[order]
    hidden_weight: Any  # (n_hidden, d - d // 2); the input is the kept half of the coordinates
    hidden_bias: Any  # (n_hidden,)
    # Shifts of the other half, m = d // 2; in affine couplings then as many unbounded log-scales.
    readout_weight: Any  # (m, n_hidden) or (2 m, n_hidden)
    readout_bias: Any  # (m,) or (2 m,)


class Last(NamedTuple):
    """Tensors or arrays of the last steps: a permutation and ActNorm."""

    order: Any  # permutation, (d,): x -> x[order]
    log_scale: Any  # ActNorm, (d,): x -> exp(log_scale) x + shift
    shift: Any  # (d,)


class Scaling(Transform):
    """ActNorm as a transform, x -> exp(log_scale) x + shift, with parameters of shape (d,)."""

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
        """Return the sum of the log-scales for each row."""
        return self.log_scale.sum().expand(x.shape[:-1])


class Permutation(PermutationTransform):
    """Permutation x -> x[order] with a fast gradient."""

    def _call(self, x: Tensor) -> Tensor:
        return x.index_select(-1, self.order)


class HalfCoupling(CouplingTransform):
    """Coupling in which `meta` maps the `n_kept` first coordinates to the others' transform."""

    def __init__(self, meta: Callable[[Tensor], Transform], n_kept: int) -> None:
        Transform.__init__(self)
        self.meta, self.n_kept = meta, n_kept

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Split rows into kept and transformed coordinates."""
        return x[..., : self.n_kept], x[..., self.n_kept :]

    def merge(self, x_a: Tensor, x_b: Tensor, shape: torch.Size) -> Tensor:
        """Join kept and transformed coordinates."""
        return torch.cat([x_a, x_b], dim=-1)


def make_transform(coupling: str, blocks: Sequence[Block], last: Last) -> ComposedTransform:
    """Chain the blocks and the last steps; the result maps rows to z, and its ``inv`` maps back."""
    steps = [step for block in blocks for step in block_steps(coupling, block)]
    return ComposedTransform(*steps, Permutation(last.order), Scaling(last.log_scale, last.shift))


def block_steps(coupling: str, block: Block) -> tuple[Transform, Transform, Transform]:
    """Return ActNorm, permutation and coupling of a block."""

    def transform_given(kept: Tensor) -> Transform:
        """Return the transform of the other coordinates."""
        hidden = F.elu(F.linear(kept, block.hidden_weight, block.hidden_bias))
        parameters = F.linear(hidden, block.readout_weight, block.readout_bias)
        if coupling == "additive":
            return DependentTransform(AdditiveTransform(parameters), 1)
        shift, scale = parameters.chunk(2, dim=-1)
        return DependentTransform(MonotonicAffineTransform(shift, scale, slope=_SLOPE), 1)

    coupled = HalfCoupling(transform_given, block.hidden_weight.shape[1])
    return Scaling(block.log_scale, block.shift), Permutation(block.order), coupled


def with_likelihood(transform: ComposedTransform, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return z (n, d) of rows, and their log-likelihoods (n,) in nats under z ~ N(0, I)."""
    Z, log_det = transform.call_and_ladj(X)
    return Z, log_det - 0.5 * (Z.square().sum(-1) + Z.shape[-1] * math.log(2 * math.pi))


class FlowMap(NamedTuple):
    """A fitted flow in float64, as a map and as a density."""

    coupling: str  # "additive" or "affine"
    blocks: tuple[Block, ...]
    last: Last

    @property
    def n_features_out(self) -> int:
        """Number of output features."""
        return len(self.last.shift)

    def __call__(self, X: Floats) -> Floats:
        return self.transform()(torch.tensor(X)).numpy()

    def inverted(self) -> Callable[[Floats], Floats]:
        """Return the inverse, from z to embeddings; it is exact up to rounding."""
        back = self.transform().inv
        return lambda Z: back(torch.tensor(Z)).numpy()

    def log_likelihood(self, X: Floats) -> Floats:
        """Return the log-likelihood of each row in nats."""
        return with_likelihood(self.transform(), torch.tensor(X))[1].numpy()

    def transform(self) -> ComposedTransform:
        """Build the transform of float64 tensors from rows to z."""
        blocks = [Block(*map(torch.tensor, block)) for block in self.blocks]
        return make_transform(self.coupling, blocks, Last(*map(torch.tensor, self.last)))

    def calibrated(self, X: NDArray[Any]) -> "FlowMap":
        """Return the flow whose last ActNorm gives the outputs of X mean 0 and variance 1."""
        Z = map_rows(self, X)
        mean, deviation = Z.mean(axis=0), floored(torch.from_numpy(Z.std(axis=0)), 1.0).numpy()
        order, log_scale, shift = self.last
        last = Last(order, log_scale - np.log(deviation), (shift - mean) / deviation)
        return self._replace(last=last)


def floored(deviations: Tensor, dead: float | Tensor) -> Tensor:
    """Raise standard deviations (d,) to 1e-3 of the largest, or to `dead` without variance."""
    raised = deviations.clamp(min=_FLOOR * deviations.max())
    constant = dead_dimensions(deviations.double().square())
    return torch.where(constant, torch.as_tensor(dead).to(raised), raised)
