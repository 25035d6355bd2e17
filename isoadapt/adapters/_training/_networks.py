"""Networks that adapt embeddings, trained for several members at once.

All parameters have a leading member axis K; inputs of shape (n, d) are shared by the members.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from isoadapt.adapters._maps import Affine, Floats, ResidualMLP
from isoadapt.adapters._training._coordinates import Coordinates
from isoadapt.heads import LinearHead


class Adapted(NamedTuple):
    """The output of a network: adapted points, and the outputs of the heads."""

    points: Tensor  # (K, n, d)
    outputs: Tensor | None  # of the heads, (K, n, n_outputs)
    # Coefficients (K, n_outputs, d) and offsets (K, 1, n_outputs) of the affine maps from the
    # network's inputs to the heads' outputs; None if these maps are not affine.
    reader: tuple[Tensor, Tensor] | None = None


class LinearNetwork(nn.Module):
    """One linear layer for each member, z = Ax + c, initialised from `starts`."""

    def __init__(self, starts: Sequence[Affine]) -> None:
        super().__init__()
        self.weight = _members([start.matrix for start in starts])
        self.bias = _members([start.offset[None] for start in starts])

    def forward(self, X: Tensor) -> Tensor:
        """Adapt points (n, d) or (K, n, d); return (K, n, d)."""
        return self.unshifted(X) + self.bias

    def unshifted(self, X: Tensor) -> Tensor:
        """Adapt points (n, d) or (K, n, d) without adding the bias c; return (K, n, d)."""
        return _linear(X, self.weight)

    def read(self, X: Tensor, coef: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return adapted points without the bias (K, n, d), and the product of heads and weights.

        The product (K, n_outputs, d) maps points to outputs; it is None if the network is not
        linear. The heads' coefficients `coef` have shape (K, n_outputs, d).
        """
        points, product = _LinearAndProduct.apply(X, self.weight, coef)
        return points, product

    def map(self, member: int, coordinates: Coordinates) -> Affine | ResidualMLP:
        """Return a member as a float64 map of embeddings; it was trained in `coordinates`."""
        return coordinates.embedding_map(_affine(self.weight[member], self.bias[member, 0]))


class MLPNetwork(LinearNetwork):
    """A linear layer with a parallel hidden layer of equal width, z = Ax + c + V gelu(Ux + u).

    V starts at zero, so that every member starts as its linear layer. U is drawn from the members'
    generators. `dead` (d,) marks inputs of each member without variance; U ignores them.
    """

    def __init__(
        self,
        starts: Sequence[Affine],
        generators: Sequence[torch.Generator],
        dead: Sequence[NDArray[np.bool_]] | None = None,
    ) -> None:
        super().__init__(starts)
        n_members, d = len(starts), starts[0].matrix.shape[1]
        draws = torch.stack([torch.randn(d, d, generator=each) for each in generators])
        if dead is not None:
            draws *= torch.from_numpy(~np.stack(dead))[:, None]
        self.hidden_weight = nn.Parameter(draws / d**0.5)
        self.hidden_bias = nn.Parameter(torch.zeros(n_members, 1, d))
        self.readout = nn.Parameter(torch.zeros(n_members, d, d))

    def unshifted(self, X: Tensor) -> Tensor:
        """Adapt points (n, d) or (K, n, d) without adding the bias c; return (K, n, d)."""
        hidden = F.gelu(_linear(X, self.hidden_weight) + self.hidden_bias)
        return torch.baddbmm(super().unshifted(X), hidden, self.readout.mT)

    def read(self, X: Tensor, coef: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return adapted points without the bias (K, n, d), and None for the product."""
        return self.unshifted(X), None

    def map(self, member: int, coordinates: Coordinates) -> ResidualMLP:
        """Return a member as a float64 map of embeddings; it was trained in `coordinates`."""
        linear = _affine(self.weight[member], self.bias[member, 0])
        hidden = _affine(self.hidden_weight[member], self.hidden_bias[member, 0])
        return ResidualMLP(
            coordinates.embedding_map(linear),
            hidden.after(coordinates.into),
            coordinates.scale * coordinates.out @ _array(self.readout[member]),
        )


class HeadedNetwork(nn.Module):
    """A network with linear heads on its outputs; `heads` None means that there are none.

    `shifts` says whether the returned points include the bias. It is false for penalties that do
    not depend on shifts, because their gradient for the bias would consist of rounding errors only.
    """

    def __init__(
        self,
        network: LinearNetwork,
        heads: Sequence[LinearHead] | None,
        shifts: bool = True,
    ) -> None:
        super().__init__()
        self.network, self.shifts = network, shifts
        self.coef = self.intercept = None
        if heads is not None:
            self.coef = _members([head.coef_ for head in heads])
            self.intercept = _members([head.intercept_[None] for head in heads])

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Copy the weights of a member, by name and without the member axis."""
        return {name: value[member].clone() for name, value in self.state_dict().items()}

    def load_member(self, member: int, state: dict[str, Tensor]) -> None:
        """Restore the weights of a member from :meth:`member_state`."""
        for name, value in self.state_dict().items():
            value[member] = state[name]

    def head_arrays(self, member: int) -> tuple[Floats, Floats]:
        """Return coefficients (n_outputs, d) and intercepts (n_outputs,) of a member's head."""
        if self.coef is None or self.intercept is None:
            raise ValueError("this network was made without a head")
        return _array(self.coef[member]), _array(self.intercept[member, 0])

    def train_parts(self, network: bool, head: bool) -> None:
        """Choose whether the network and the head are trained."""
        self.network.requires_grad_(network)
        for parameter in (self.coef, self.intercept):
            if parameter is not None:
                parameter.requires_grad_(head)

    def forward(self, X: Tensor) -> Adapted:
        """Adapt points (n, d) or (K, n, d), and apply the heads."""
        network = self.network
        if self.coef is None or self.intercept is None:
            return Adapted(network(X) if self.shifts else network.unshifted(X), None)
        points, product = network.read(X, self.coef)
        intercept = torch.baddbmm(self.intercept, network.bias, self.coef.mT)
        if product is None:
            reader, outputs = None, torch.baddbmm(intercept, points, self.coef.mT)
        else:
            reader = product, intercept
            outputs = _read(X, *reader)
        return Adapted(points + network.bias if self.shifts else points, outputs, reader)

    def linear_outputs(self, X: Tensor) -> Tensor | None:
        """Return the heads' outputs without adapting the points; for linear networks only."""
        if self.coef is None or self.intercept is None:
            return None
        intercept = torch.baddbmm(self.intercept, self.network.bias, self.coef.mT)
        return _read(X, self.coef @ self.network.weight, intercept)


class _LinearAndProduct(torch.autograd.Function):
    """The points XWᵀ and the product HW with heads H.

    One function sums the two gradients with respect to W in one matrix.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, weight: Tensor, coef: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(X, weight, coef)
        return _linear(X, weight), coef @ weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_points: Tensor, to_product: Tensor) -> tuple[Tensor | None, ...]:
        X, weight, coef = ctx.saved_tensors
        to_weight = to_coef = None
        if ctx.needs_input_grad[1]:
            if X.ndim == 3:
                to_weight = to_points.mT @ X
            else:
                to_weight = (to_points.transpose(0, 1).flatten(1).mT @ X).view_as(weight)
            to_weight.baddbmm_(coef.mT, to_product)
        if ctx.needs_input_grad[2]:
            to_coef = to_product @ weight.mT
        return None, to_weight, to_coef


def _read(X: Tensor, product: Tensor, intercept: Tensor) -> Tensor:
    """Outputs (K, n, n_outputs) of affine maps from points (n, d) or (K, n, d); see Adapted."""
    return torch.baddbmm(intercept, X.expand(len(product), *X.shape[-2:]), product.mT)


def _linear(X: Tensor, weight: Tensor) -> Tensor:
    n_members, width, _ = weight.shape
    if X.ndim == 3 and n_members > 1:  # in this form the gradient needs no transposition
        return (weight @ X.mT).mT
    rows = X.squeeze(0) if X.ndim == 3 else X
    return F.linear(rows, weight.flatten(0, 1)).view(-1, n_members, width).transpose(0, 1)


def _members(starts: Sequence[Floats]) -> nn.Parameter:
    # The optimizer would copy tensors that are not contiguous.
    rows = np.ascontiguousarray(np.stack(starts), dtype=np.float32)
    return nn.Parameter(torch.tensor(rows))


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().cpu().double().numpy()


def _affine(weight: Tensor, bias: Tensor) -> Affine:
    return Affine(_array(weight), _array(bias))
