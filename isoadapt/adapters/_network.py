"""Networks that adapt embeddings, trained for several members at once.

All tensors carry a leading member axis K; inputs of shape (n, d) are shared by the members.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoadapt.adapters._coordinates import Coordinates
from isoadapt.adapters._maps import Affine, Floats, ResidualMLP
from isoadapt.heads import LinearHead


class LinearNetwork(nn.Module):
    """One linear layer for each member, z = Ax + c.

    Parameters
    ----------
    n_members : int
        K.
    start : Affine
        Where every member starts.
    """

    def __init__(self, n_members: int, start: Affine) -> None:
        super().__init__()
        self.weight = nn.Parameter(_members(start.matrix, n_members))
        self.bias = nn.Parameter(_members(start.offset[None], n_members))

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
        return _linear(X, self.weight, self.bias)

    def covariance(self, inputs: Tensor) -> Tensor:
        """Give the covariance of what the linear layer makes of points.

        Parameters
        ----------
        inputs : Tensor of shape (d, d)
            Covariance Σ of the points.

        Returns
        -------
        Tensor of shape (K, d, d)
            AΣAᵀ of each member.
        """
        return self.weight @ inputs @ self.weight.mT

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
    n_members : int
        K.
    start : Affine
        Where every member's linear part starts; U is as wide as it.
    generator : torch.Generator
        Draws the start of U.
    """

    def __init__(self, n_members: int, start: Affine, generator: torch.Generator) -> None:
        super().__init__(n_members, start)
        d = start.matrix.shape[1]
        draws = torch.randn(n_members, d, d, generator=generator)
        self.hidden_weight = nn.Parameter(draws / d**0.5)
        self.hidden_bias = nn.Parameter(torch.zeros(n_members, 1, d))
        self.readout = nn.Parameter(torch.zeros(n_members, d, d))

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
        hidden = F.gelu(_linear(X, self.hidden_weight, self.hidden_bias))
        return torch.baddbmm(super().forward(X), hidden, self.readout.mT)

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
            coordinates.out @ _array(self.readout[member]),
        )


class HeadedNetwork(nn.Module):
    """A network and the linear head that reads it.

    Parameters
    ----------
    network : LinearNetwork
        The adapter.
    head : LinearHead or None
        Where every member's head starts; None: no head.
    """

    def __init__(self, network: LinearNetwork, head: LinearHead | None) -> None:
        super().__init__()
        self.network = network
        self.coef = self.intercept = None
        if head is not None:
            n_members = len(network.weight)
            self.coef = nn.Parameter(_members(head.coef_, n_members))
            self.intercept = nn.Parameter(_members(head.intercept_[None], n_members))

    def head_arrays(self) -> tuple[Floats, Floats]:
        """Return the first member's head.

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
        return _array(self.coef[0]), _array(self.intercept[0, 0])

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

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor | None]:
        """Adapt points and read them.

        Parameters
        ----------
        X : Tensor of shape (n, d) or (K, n, d)
            Points.

        Returns
        -------
        adapted : Tensor of shape (K, n, d)
            Adapted points.
        outputs : Tensor of shape (K, n, n_outputs) or None
            The head's outputs.
        """
        adapted = self.network(X)
        if self.coef is None or self.intercept is None:
            return adapted, None
        return adapted, _linear(adapted, self.coef, self.intercept)


def _linear(X: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if len(weight) == 1:  # the gradient of the batched product comes out transposed: one copy more
        rows = X.squeeze(0) if X.ndim == 3 else X
        return F.linear(rows, weight.squeeze(0), bias.flatten()).unsqueeze(0)
    if X.ndim == 2:
        X = X.expand(len(weight), *X.shape)
    return torch.baddbmm(bias, X, weight.mT)


def _members(start: Floats, n_members: int) -> Tensor:
    return torch.tensor(start, dtype=torch.float32).repeat(n_members, 1, 1)


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().cpu().double().numpy()


def _affine(weight: Tensor, bias: Tensor) -> Affine:
    return Affine(_array(weight), _array(bias))
