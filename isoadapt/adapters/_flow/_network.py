"""The flow as a trainable network."""

import math
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from isoadapt.adapters._engine._network import Adapted
from isoadapt.adapters._flow._map import (
    Block,
    FlowMap,
    Last,
    block_steps,
    floored,
    make_transform,
    with_likelihood,
)
from isoadapt.adapters._maps import Floats
from isoadapt.geometry._spread import dead_dimensions
from isoadapt.heads import LinearHead

_CHUNK = 1024


class ActNorm(nn.Module):
    """Scale and shift of each of d features, initialised to normalise given rows."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(d, dtype=torch.float32))
        self.shift = nn.Parameter(torch.zeros(d, dtype=torch.float32))

    @torch.no_grad()
    def start(self, X: Tensor) -> None:
        """Initialise so that rows (n, d) are mapped to mean 0 and standard deviation 1."""
        deviations = floored(X.std(dim=0), 1.0)
        self.log_scale.copy_(-deviations.log())
        self.shift.copy_(-X.mean(dim=0) / deviations)

    def freeze(self, dead: Tensor) -> None:
        """Do not train features that `dead` (d,) marks: they have no maximum-likelihood value."""
        for parameter in (self.log_scale, self.shift):
            _freeze(parameter, dead)


class BlockNetwork(ActNorm):
    """Parameters of a block with `hidden` units; its coupling is initialised as the identity."""

    order: Tensor

    def __init__(
        self, order: Tensor, hidden: int, coupling: str, generator: torch.Generator
    ) -> None:
        d = len(order)
        super().__init__(d)
        self.register_buffer("order", order)
        bound = (d - d // 2) ** -0.5
        size = hidden, d - d // 2 + 1
        draws = torch.rand(size, generator=generator, dtype=torch.float32) * 2 * bound - bound
        self.hidden_weight = nn.Parameter(draws[:, 1:].clone())
        self.hidden_bias = nn.Parameter(draws[:, 0].clone())
        n_parameters = d // 2 * (1 if coupling == "additive" else 2)
        self.readout_weight = nn.Parameter(torch.zeros(n_parameters, hidden, dtype=torch.float32))
        self.readout_bias = nn.Parameter(torch.zeros(n_parameters, dtype=torch.float32))

    def freeze(self, dead: Tensor) -> None:
        """Pass features that `dead` (d,) marks unchanged, and ignore them as inputs."""
        super().freeze(dead)
        kept, other = dead[self.order].split([self.hidden_weight.shape[1], len(dead) // 2])
        with torch.no_grad():
            self.hidden_weight[:, kept] = 0
        _freeze(self.hidden_weight, kept)
        constant = other.repeat(len(self.readout_bias) // len(other))
        _freeze(self.readout_weight, constant[:, None])
        _freeze(self.readout_bias, constant)

    def tensors(self) -> Block:
        """Return the parameters as a Block."""
        return Block(*(getattr(self, name) for name in Block._fields))


class FlowNetwork(nn.Module):
    """A float32 flow of centred, scaled rows, at first the identity; a frozen head may read it."""

    mean: Floats  # of the embeddings, (d,)
    deviation: Floats
    last_order: Tensor
    coef: Tensor | None
    intercept: Tensor | None
    layer = None  # its penalty depends on the points alone

    def __init__(
        self, d: int, n_blocks: int, hidden: int, coupling: str, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.coupling = coupling
        back = torch.arange(d - 1, -1, -1)  # in odd blocks, which exchanges the halves
        draw = partial(torch.randperm, d, generator=generator)
        orders = [back if number % 2 else draw() for number in range(n_blocks)]
        blocks = [BlockNetwork(order, hidden, coupling, generator) for order in orders]
        self.blocks = cast(list[BlockNetwork], nn.ModuleList(blocks))
        self.last = ActNorm(d)
        total = torch.arange(d)
        for order in orders:
            total = total[order]
        self.register_buffer("last_order", total.argsort())
        self.register_buffer("coef", None)
        self.register_buffer("intercept", None)

    @torch.no_grad()
    def start(self, X: NDArray[Any]) -> None:
        """Take mean and scale from embeddings (n, d), and initialise one ActNorm after another."""
        given = torch.tensor(X, dtype=torch.float64)
        deviation = given.std(dim=0)
        self.mean = given.mean(dim=0).numpy()
        self.deviation = floored(deviation, deviation.square().mean().sqrt()).numpy()
        rows = torch.from_numpy(self.normalise(X)).float()
        dead = features_dead = dead_dimensions(deviation.square())
        for block in self.blocks:
            block.start(rows)
            block.freeze(dead)
            dead = dead[block.order]
            for step in block_steps(self.coupling, block.tensors()):
                rows = step(rows)
        self.last.start(rows[:, self.last_order])
        self.last.freeze(features_dead)

    def normalise(self, X: Floats) -> Floats:
        """Centre and scale embeddings (n, d)."""
        return (X - self.mean) / self.deviation

    def normalised_head(self, head: LinearHead) -> LinearHead:
        """Convert a head on embeddings into the equal head on centred and scaled embeddings."""
        return head._with(head.coef_ * self.deviation, head.intercept_ + head.coef_ @ self.mean)

    def read_by(self, head: LinearHead) -> None:
        """Let a frozen head read the outputs of the flow."""
        self.coef = torch.tensor(head.coef_, dtype=torch.float32)
        self.intercept = torch.tensor(head.intercept_, dtype=torch.float32)

    def likelihood(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs (n, d) and log-likelihoods (n,) in nats of centred and scaled rows."""
        blocks = [block.tensors() for block in self.blocks]
        return with_likelihood(make_transform(self.coupling, blocks, self._last()), X)

    def forward(self, X: Tensor) -> Adapted:
        """Return the bits/dim (1, n) of rows, as points, and the outputs of the head."""
        if self.training:
            Z, likelihood = self.likelihood(X)
        else:  # parts that fit into the processor's cache
            parts = map(self.likelihood, X.split(_CHUNK))
            Z, likelihood = map(torch.cat, zip(*parts, strict=True))
        bits = -likelihood[None] / (X.shape[1] * math.log(2))
        outputs = None if self.coef is None else F.linear(Z, self.coef, self.intercept)[None]
        return Adapted(bits, outputs)

    def map(self) -> FlowMap:
        """Return a float64 map, with centring and scaling merged into the first ActNorm."""
        first, *others = (Block(*map(_array, block.tensors())) for block in self.blocks)
        scale = np.exp(first.log_scale) / self.deviation
        first = first._replace(log_scale=np.log(scale), shift=first.shift - scale * self.mean)
        return FlowMap(self.coupling, (first, *others), Last(*map(_array, self._last())))

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Copy the weights by name; `member` is 0, as there is one member."""
        return {name: value.clone() for name, value in self.state_dict().items()}

    def _last(self) -> Last:
        return Last(self.last_order, self.last.log_scale, self.last.shift)


def _freeze(parameter: nn.Parameter, dead: Tensor) -> None:
    """Set to zero the gradients of the entries that `dead`, broadcast to the parameter, marks."""
    if dead.any():
        kept = (~dead).to(parameter)
        parameter.register_hook(lambda gradient: gradient * kept)


def _array(tensor: Tensor) -> NDArray[Any]:
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy(force=True)
