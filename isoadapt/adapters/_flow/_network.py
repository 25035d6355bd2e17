"""The flow in training."""

import math
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from isoadapt.adapters._flow._map import (
    Block,
    Coupling,
    FlowMap,
    Last,
    block_steps,
    floored,
    make_transform,
    standard_normal,
)
from isoadapt.adapters._training._networks import Adapted
from isoadapt.geometry import dead_dimensions
from isoadapt.heads import LinearHead

_CHUNK = 1024


class ActNorm(nn.Module):
    """Scale and shift of each feature, started so that given rows come out normalised.

    Parameters
    ----------
    d : int
        Number of features.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(d))
        self.shift = nn.Parameter(torch.zeros(d))

    @torch.no_grad()
    def start(self, X: Tensor) -> None:
        """Normalise rows: mean 0 and standard deviation 1.

        Parameters
        ----------
        X : Tensor of shape (n, d)
            Rows.
        """
        deviations = floored(X.std(dim=0), 1.0)
        self.log_scale.copy_(-deviations.log())
        self.shift.copy_(-X.mean(dim=0) / deviations)

    def freeze(self, dead: Tensor) -> None:
        """Keep features without variance as they are: their likelihood has no maximum.

        Parameters
        ----------
        dead : Tensor of shape (d,)
            Whether each feature has no variance.
        """
        for parameter in (self.log_scale, self.shift):
            _freeze(parameter, dead)


class BlockNetwork(ActNorm):
    """The parameters of a block; its coupling starts as the identity.

    Parameters
    ----------
    order : Tensor of shape (d,)
        The permutation.
    hidden : int
        Width of the conditioner's hidden layer.
    coupling : {"additive", "affine"}
        What the coupling does.
    generator : torch.Generator
        Draws the start of the hidden layer.
    """

    order: Tensor

    def __init__(
        self, order: Tensor, hidden: int, coupling: str, generator: torch.Generator
    ) -> None:
        d = len(order)
        super().__init__(d)
        self.register_buffer("order", order)
        bound = (d - d // 2) ** -0.5
        draws = torch.rand(hidden, d - d // 2 + 1, generator=generator) * 2 * bound - bound
        self.hidden_weight = nn.Parameter(draws[:, 1:].clone())
        self.hidden_bias = nn.Parameter(draws[:, 0].clone())
        n_parameters = d // 2 * (1 if coupling == "additive" else 2)
        self.readout_weight = nn.Parameter(torch.zeros(n_parameters, hidden))
        self.readout_bias = nn.Parameter(torch.zeros(n_parameters))

    def freeze(self, dead: Tensor) -> None:
        """Let features without variance pass unchanged and unread.

        Parameters
        ----------
        dead : Tensor of shape (d,)
            Whether each feature that enters the block has no variance.
        """
        super().freeze(dead)
        kept, other = dead[self.order].split([self.hidden_weight.shape[1], len(dead) // 2])
        with torch.no_grad():
            self.hidden_weight[:, kept] = 0
        _freeze(self.hidden_weight, kept)
        read = other.repeat(len(self.readout_bias) // len(other))
        _freeze(self.readout_weight, read[:, None])
        _freeze(self.readout_bias, read)

    def tensors(self) -> Block[Tensor]:
        """Return the parameters.

        Returns
        -------
        Block
            In the order of its fields.
        """
        return Block(*(getattr(self, name) for name in Block._fields))


class FlowNetwork(nn.Module):
    """A flow in training, float32; the embeddings are centred and scaled in float64 before.

    Couplings start as the identity and the features end in order, so that the flow starts as the
    standardisation of the features.

    Parameters
    ----------
    d : int
        Number of features.
    n_blocks : int
        Number of blocks.
    hidden : int
        Width of the hidden layers.
    coupling : {"additive", "affine"}
        What couplings do.
    generator : torch.Generator
        Draws permutations and hidden layers.
    """

    mean: Tensor
    deviation: Tensor
    last_order: Tensor
    initialised: Tensor

    def __init__(
        self, d: int, n_blocks: int, hidden: int, coupling: Coupling, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.coupling = coupling
        orders = [_order(d, number, generator) for number in range(n_blocks)]
        blocks = [BlockNetwork(order, hidden, coupling, generator) for order in orders]
        self.blocks = cast(list[BlockNetwork], nn.ModuleList(blocks))
        self.last = ActNorm(d)
        total = torch.arange(d)
        for order in orders:
            total = total[order]
        self.register_buffer("last_order", total.argsort())
        self.register_buffer("mean", torch.zeros(d, dtype=torch.float64))
        self.register_buffer("deviation", torch.ones(d, dtype=torch.float64))
        self.register_buffer("initialised", torch.tensor(False))

    @torch.no_grad()
    def start(self, X: Tensor) -> None:
        """Start the ActNorms one after the other; nothing happens when that was done before.

        Parameters
        ----------
        X : Tensor of shape (n, d)
            Rows, from 256 on if there are so many.
        """
        if self.initialised:
            return
        deviation = X.double().std(dim=0)
        self.mean.copy_(X.double().mean(dim=0))
        self.deviation.copy_(floored(deviation, deviation.square().mean().sqrt()))
        rows, features_dead = self.normalise(X), dead_dimensions(deviation.square())
        dead = features_dead
        for block in self.blocks:
            block.start(rows)
            block.freeze(dead)
            dead = dead[block.order]
            for step in block_steps(self.coupling, block.tensors()):
                rows = step(rows)
        self.last.start(rows[:, self.last_order])
        self.last.freeze(features_dead)
        self.initialised.fill_(True)

    def normalise(self, X: Tensor) -> Tensor:
        """Centre and scale embeddings in float64.

        Parameters
        ----------
        X : Tensor of shape (n, d)
            Embeddings.

        Returns
        -------
        Tensor of shape (n, d)
            The network's input, float32.
        """
        return ((X - self.mean) / self.deviation).float()

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Transform embeddings.

        Parameters
        ----------
        X : Tensor of shape (n, d)
            Embeddings.

        Returns
        -------
        Z : Tensor of shape (n, d)
            Outputs.
        log_likelihood : Tensor of shape (n,)
            Of the centred and scaled embeddings, in nats.
        """
        blocks = [block.tensors() for block in self.blocks]
        transform = make_transform(self.coupling, blocks, self._last())
        Z, log_det = transform.call_and_ladj(self.normalise(X))
        return Z, standard_normal(Z) + log_det

    def read_by(self, head: LinearHead) -> LinearHead:
        """Give a head of embeddings in the units in which the flow starts.

        Parameters
        ----------
        head : LinearHead
            Reads embeddings.

        Returns
        -------
        LinearHead
            Gives the same outputs for centred and scaled embeddings.
        """
        intercept = head.intercept_ + head.coef_ @ _array(self.mean)
        return LinearHead(head.coef_ * _array(self.deviation), intercept, head.classes_)

    def map(self) -> FlowMap:
        """Return the flow as a map of embeddings.

        Returns
        -------
        FlowMap
            In float64, the first centring and scaling taken into the first ActNorm.
        """
        first, *others = (Block(*map(_array, block.tensors())) for block in self.blocks)
        scale = np.exp(first.log_scale) / _array(self.deviation)
        first = first._replace(
            log_scale=np.log(scale), shift=first.shift - scale * _array(self.mean)
        )
        return FlowMap(self.coupling, (first, *others), Last(*map(_array, self._last())))

    def _last(self) -> Last[Tensor]:
        return Last(self.last_order, self.last.log_scale, self.last.shift)


def _order(d: int, number: int, generator: torch.Generator) -> Tensor:
    """Draw a permutation; every second one lets what was kept change places with the rest."""
    if number % 2:
        return torch.arange(d - 1, -1, -1)
    return torch.randperm(d, generator=generator)


def _freeze(parameter: nn.Parameter, dead: Tensor) -> None:
    """Keep the entries that `dead`, of a shape that broadcasts, marks as they are in training."""
    if dead.any():
        kept = (~dead).to(parameter)
        parameter.register_hook(lambda gradient: gradient * kept)


def _array(tensor: Tensor) -> NDArray[Any]:
    array = tensor.detach().cpu()
    return (array.double() if array.is_floating_point() else array).numpy()


class FlowObjective(nn.Module):
    """What is trained: the flow, judged by the bits of rows and read by a frozen head.

    Parameters
    ----------
    network : FlowNetwork
        The flow.
    X : Tensor of shape (n, d)
        All embeddings, on the training device; rows are told by number.
    head : LinearHead or None
        Reads the outputs.
    """

    coef: Tensor | None
    intercept: Tensor | None

    def __init__(self, network: FlowNetwork, X: Tensor, head: LinearHead | None) -> None:
        super().__init__()
        self.network, self.X = network, X
        single = torch.float32
        coef = None if head is None else torch.tensor(head.coef_, dtype=single)
        intercept = None if head is None else torch.tensor(head.intercept_, dtype=single)
        self.register_buffer("coef", coef)
        self.register_buffer("intercept", intercept)

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Copy the weights.

        Parameters
        ----------
        member : int
            0, for there is one.

        Returns
        -------
        dict of str to Tensor
            By name.
        """
        return {name: value.clone() for name, value in self.state_dict().items()}

    def load_member(self, member: int, state: dict[str, Tensor]) -> None:
        """Put back what :meth:`member_state` gave.

        Parameters
        ----------
        member : int
            0, for there is one.
        state : dict of str to Tensor
            The weights.
        """
        self.load_state_dict(state)

    def forward(self, numbers: Tensor) -> Adapted:
        """Judge and read rows.

        Parameters
        ----------
        numbers : Tensor of shape (n,)
            Of the rows.

        Returns
        -------
        Adapted
            As points of shape (1, n), minus the log-likelihood of each after centring and scaling,
            in bits for each dimension; and the head's outputs.
        """
        if self.training:
            return Adapted(*self._forward(numbers))
        bits, outputs = zip(*map(self._forward, numbers.split(_CHUNK)), strict=True)
        return Adapted(torch.cat(bits, 1), None if self.coef is None else torch.cat(outputs, 1))

    def _forward(self, numbers: Tensor) -> tuple[Tensor, Tensor | None]:
        Z, likelihood = self.network(self.X[numbers])
        bits = -likelihood[None] / (Z.shape[1] * math.log(2))
        if self.coef is None:
            return bits, None
        return bits, F.linear(Z, self.coef, self.intercept)[None]
