"""Networks that adapt embeddings, trained for several members at once.

All tensors carry a leading member axis K; inputs of shape (n, d) are shared by the members.
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
    """What a network makes of points.

    Attributes
    ----------
    points : Tensor of shape (K, n, d)
        Adapted points.
    outputs : Tensor of shape (K, n, n_outputs) or None
        What the heads make of them.
    reader : tuple of Tensor, or None
        Coefficients (K, n_outputs, d) and offsets (K, 1, n_outputs) of the affine maps from points
        to outputs; None where they are not affine.
    """

    points: Tensor
    outputs: Tensor | None
    reader: tuple[Tensor, Tensor] | None = None


class LinearNetwork(nn.Module):
    """One linear layer for each member, z = Ax + c.

    Parameters
    ----------
    starts : sequence of Affine
        Where each member starts.
    """

    def __init__(self, starts: Sequence[Affine]) -> None:
        super().__init__()
        self.weight = _members([start.matrix for start in starts])
        self.bias = _members([start.offset[None] for start in starts])

    def forward(self, X: Tensor) -> Tensor:
        """Adapt points.

        Parameters
        ----------
        X : Tensor of shape (n, d) or (K, n, d)
            Points.

        Returns
        -------
        Tensor of shape (K, n, d)
            Adapted points.
        """
        return self.unshifted(X) + self.bias

    def unshifted(self, X: Tensor) -> Tensor:
        """Adapt points, but for the last shift by the bias c.

        Parameters
        ----------
        X : Tensor of shape (n, d) or (K, n, d)
            Points.

        Returns
        -------
        Tensor of shape (K, n, d)
            Adapted points minus c.
        """
        return _linear(X, self.weight)

    def read(self, X: Tensor, coef: Tensor) -> tuple[Tensor, Tensor | None]:
        """Give points as :meth:`unshifted`, and the product of heads and weights.

        Parameters
        ----------
        X : Tensor of shape (n, d) or (K, n, d)
            Points.
        coef : Tensor of shape (K, n_outputs, d)
            Coefficients of the heads.

        Returns
        -------
        points : Tensor of shape (K, n, d)
            Adapted points minus c.
        product : Tensor of shape (K, n_outputs, d) or None
            From points to outputs; None if the network is not linear.
        """
        points, product = _LinearAndProduct.apply(X, self.weight, coef)
        return points, product

    def map(self, member: int, coordinates: Coordinates) -> Affine | ResidualMLP:
        """Return a member as a map of embeddings.

        Parameters
        ----------
        member : int
            Which.
        coordinates : Coordinates
            Those it was trained in.

        Returns
        -------
        Affine or ResidualMLP
            In float64.
        """
        return coordinates.unwind(_affine(self.weight[member], self.bias[member, 0]))


class MLPNetwork(LinearNetwork):
    """A linear layer plus a hidden layer beside it, z = Ax + c + V gelu(Ux + u).

    V starts at zero, so that every member starts as the linear layer does.

    Parameters
    ----------
    starts : sequence of Affine
        Where each member's linear part starts; U is as wide as it.
    generators : sequence of torch.Generator
        Draw the start of each member's U.
    dead : sequence of ndarray of shape (d,), default=None
        Inputs of each member that have no variance; U does not read them. None: all have some.
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
        """Adapt points, but for the last shift by the bias c.

        Parameters
        ----------
        X : Tensor of shape (n, d) or (K, n, d)
            Points.

        Returns
        -------
        Tensor of shape (K, n, d)
            Adapted points minus c.
        """
        hidden = F.gelu(_linear(X, self.hidden_weight) + self.hidden_bias)
        return torch.baddbmm(super().unshifted(X), hidden, self.readout.mT)

    def read(self, X: Tensor, coef: Tensor) -> tuple[Tensor, Tensor | None]:
        """Give points as :meth:`unshifted`; there is no product.

        Parameters
        ----------
        X : Tensor of shape (n, d) or (K, n, d)
            Points.
        coef : Tensor of shape (K, n_outputs, d)
            Not used.

        Returns
        -------
        points : Tensor of shape (K, n, d)
            Adapted points minus c.
        product : None
            Of heads and weights.
        """
        return self.unshifted(X), None

    def map(self, member: int, coordinates: Coordinates) -> ResidualMLP:
        """Return a member as a map of embeddings.

        Parameters
        ----------
        member : int
            Which.
        coordinates : Coordinates
            Those it was trained in.

        Returns
        -------
        ResidualMLP
            In float64.
        """
        linear = _affine(self.weight[member], self.bias[member, 0])
        hidden = _affine(self.hidden_weight[member], self.hidden_bias[member, 0])
        return ResidualMLP(
            coordinates.unwind(linear),
            hidden.after(coordinates.into),
            coordinates.scale * coordinates.out @ _array(self.readout[member]),
        )


class HeadedNetwork(nn.Module):
    """A network and the linear heads that read it.

    Parameters
    ----------
    network : LinearNetwork
        The adapter.
    heads : sequence of LinearHead, or None
        Where each member's head starts; None: no heads.
    shifts : bool, default=True
        Whether the points that it gives are shifted by the bias. Where a penalty does not look at
        shifts, the head alone should read it: rounding would be all that moved it otherwise.
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
        """Copy a member's weights.

        Parameters
        ----------
        member : int
            Which.

        Returns
        -------
        dict of str to Tensor
            By name, without the member axis.
        """
        return {name: value[member].clone() for name, value in self.state_dict().items()}

    def load_member(self, member: int, state: dict[str, Tensor]) -> None:
        """Put back what :meth:`member_state` gave.

        Parameters
        ----------
        member : int
            Which.
        state : dict of str to Tensor
            Its weights.
        """
        for name, value in self.state_dict().items():
            value[member] = state[name]

    def head_arrays(self, member: int) -> tuple[Floats, Floats]:
        """Return a member's head.

        Parameters
        ----------
        member : int
            Which.

        Returns
        -------
        coef : ndarray of shape (n_outputs, d)
            Weights.
        intercept : ndarray of shape (n_outputs,)
            Bias.

        Raises
        ------
        ValueError
            If there is no head.
        """
        if self.coef is None or self.intercept is None:
            raise ValueError("this network was made without a head")
        return _array(self.coef[member]), _array(self.intercept[member, 0])

    def train_parts(self, network: bool, head: bool) -> None:
        """Choose what is trained.

        Parameters
        ----------
        network : bool
            Whether the adapter learns.
        head : bool
            Whether the head learns.
        """
        self.network.requires_grad_(network)
        for parameter in (self.coef, self.intercept):
            if parameter is not None:
                parameter.requires_grad_(head)

    def forward(self, X: Tensor) -> Adapted:
        """Adapt points and read them.

        Parameters
        ----------
        X : Tensor of shape (n, d) or (K, n, d)
            Points.

        Returns
        -------
        Adapted
            Adapted points, less the bias unless `shifts`, and the heads' outputs.
        """
        network = self.network
        if self.coef is None or self.intercept is None:
            return Adapted(network(X) if self.shifts else network.unshifted(X), None)
        points, product = network.read(X, self.coef)
        intercept = torch.baddbmm(self.intercept, network.bias, self.coef.mT)
        if product is None:
            reader, outputs = None, torch.baddbmm(intercept, points, self.coef.mT)
        else:
            reader = product, intercept
            outputs = torch.baddbmm(intercept, X.expand_as(points), product.mT)
        return Adapted(points + network.bias if self.shifts else points, outputs, reader)


class _LinearAndProduct(torch.autograd.Function):
    """The points XWᵀ, and the product HW with heads H: their gradients for W are one matrix."""

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


def _linear(X: Tensor, weight: Tensor) -> Tensor:
    n_members, width, _ = weight.shape
    if X.ndim == 3 and n_members > 1:  # written so that no gradient needs transposing
        return (weight @ X.mT).mT
    rows = X.squeeze(0) if X.ndim == 3 else X
    return F.linear(rows, weight.flatten(0, 1)).view(-1, n_members, width).transpose(0, 1)


def _members(starts: Sequence[Floats]) -> nn.Parameter:
    rows = np.ascontiguousarray(np.stack(starts), dtype=np.float32)  # the optimizer copies others
    return nn.Parameter(torch.tensor(rows))


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().cpu().double().numpy()


def _affine(weight: Tensor, bias: Tensor) -> Affine:
    return Affine(_array(weight), _array(bias))
