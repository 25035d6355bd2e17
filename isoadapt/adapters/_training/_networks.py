"""Networks that adapt embeddings, and their optimizer, for several members at once.

All parameters have a leading member axis K; inputs of shape (n, d) are shared by the members.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.optim.adamw import adamw

from isoadapt.adapters._maps import Affine, Floats, ResidualMLP
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
        """Return points without the bias, and the heads' coefficients times the weights."""
        points, product = _LinearAndProduct.apply(X, self.weight, coef)
        return points, product

    def map(self, member: int) -> Affine | ResidualMLP:
        """Return a member as a float64 map of the network's inputs."""
        return Affine(_array(self.weight[member]), _array(self.bias[member, 0]))

    def member(self, member: int) -> "LinearNetwork":
        """Return the network of one member, whose weights are views of these."""
        network = copy.copy(self)
        own = {name: weights[member : member + 1] for name, weights in self.named_parameters()}
        network._parameters = cast(dict[str, nn.Parameter | None], own)
        return network


class MLPNetwork(LinearNetwork):
    """A linear layer with a parallel hidden layer of equal width, z = Ax + c + V gelu(Ux + u)."""

    def __init__(
        self,
        starts: Sequence[Affine],
        generators: Sequence[torch.Generator],
        dead: Sequence[NDArray[np.bool_]],
    ) -> None:
        super().__init__(starts)
        n_members, d = len(starts), starts[0].matrix.shape[1]
        draws = torch.stack([torch.randn(d, d, generator=each) for each in generators])
        draws *= torch.from_numpy(~np.stack(dead))[:, None]  # ignores inputs without variance
        self.hidden_weight = nn.Parameter(draws / d**0.5)
        self.hidden_bias = nn.Parameter(torch.zeros(n_members, 1, d))
        # At zero, so that every member starts as its linear layer.
        self.readout = nn.Parameter(torch.zeros(n_members, d, d))

    def unshifted(self, X: Tensor) -> Tensor:
        """Adapt points (n, d) or (K, n, d) without adding the bias c; return (K, n, d)."""
        hidden = F.gelu(_linear(X, self.hidden_weight) + self.hidden_bias)
        return torch.baddbmm(super().unshifted(X), hidden, self.readout.mT)

    def read(self, X: Tensor, coef: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return adapted points without the bias (K, n, d), and None for the product."""
        return self.unshifted(X), None

    def map(self, member: int) -> ResidualMLP:
        """Return a member as a float64 map of the network's inputs."""
        return ResidualMLP(
            Affine(_array(self.weight[member]), _array(self.bias[member, 0])),
            Affine(_array(self.hidden_weight[member]), _array(self.hidden_bias[member, 0])),
            _array(self.readout[member]),
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
    """The points XWᵀ and the product HW with heads H; both gradients of W are summed in place."""

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


class Rates(NamedTuple):
    """Learning rates of a member; `read_lr` replaces `lr` for its first `n_read` outputs.

    The head reads these outputs. Adam changes all weights by steps of similar size, so the head's
    outputs, which are sums over all inputs, would move far in the first steps if there are few
    rows.
    """

    lr: float
    weight_decay: float = 0.0
    read_lr: float = 0.0
    n_read: int = 0


class MemberAdamW(torch.optim.Optimizer):
    """Fused AdamW over parameters (K, ...), with separate rates for each member."""

    def __init__(
        self, params: Iterable[Tensor], rates: Sequence[Rates], lr: float | None = None
    ) -> None:
        super().__init__(params, {})
        self.rates = list(rates)
        self.factor = 1.0  # multiplies all learning rates

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Take one step; the gradients exist already, so `closure` is not used."""
        trained = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        states = [self._state(parameter) for parameter in trained]
        start = 0
        for rates, run in groupby(self.rates):
            members = slice(start, start + len(list(run)))
            start = members.stop
            read = [_first_outputs(parameter[members], rates.n_read) for parameter in trained]
            before = [part.clone() for part in read if rates.n_read]
            adamw(
                [parameter[members] for parameter in trained],
                [cast(Tensor, parameter.grad)[members] for parameter in trained],
                [state["exp_avg"][members] for state in states],
                [state["exp_avg_sq"][members] for state in states],
                [],
                [state["step"].clone() for state in states],
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=self.factor * rates.lr,
                weight_decay=rates.weight_decay,
                eps=1e-8,
                maximize=False,
            )
            for part, old in zip(read, before, strict=False):
                part.lerp_(old, 1 - rates.read_lr / rates.lr)
        for state in states:
            state["step"] += 1

    def keep(self, members: Sequence[int]) -> None:
        """Keep only the given members; the parameters have been reduced already."""
        self.rates = [self.rates[member] for member in members]
        for state in self.state.values():
            index = torch.tensor(members, device=state["exp_avg"].device)
            state["exp_avg"] = state["exp_avg"][index]
            state["exp_avg_sq"] = state["exp_avg_sq"][index]

    def _state(self, parameter: Tensor) -> dict[str, Any]:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
            state["step"] = torch.zeros((), device=parameter.device)
        return state


def _first_outputs(parameter: Tensor, n: int) -> Tensor:
    """Return the part of weights (K, d, d) or a bias (K, 1, d) that makes the first n outputs."""
    return parameter[:, :n] if parameter.shape[1] > 1 else parameter[..., :n]
