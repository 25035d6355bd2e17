"""The trained network and its optimizer, for several members at once.

All parameters have a leading member axis K; inputs of shape (n, d) are shared by the members.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from isoadapt.adapters._maps import Affine, Floats
from isoadapt.heads import LinearHead

_ADAM: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "fused": True}
_ADAM |= {"amsgrad": False, "maximize": False}


class Adapted(NamedTuple):
    """The output of a network: adapted points, and the outputs of the heads."""

    points: Tensor  # (K, n, d)
    outputs: Tensor | None  # of the heads, (K, n, n_outputs)
    reader: tuple[Tensor, Tensor] | None = None  # see AdapterNetwork.reader


class Layer(NamedTuple):
    """The linear layers of the members."""

    weight: Tensor  # (K, d, d)
    bias: Tensor  # (K, 1, d)

    def split(self) -> "list[Layer]":
        """Return the layer of each member, with the member axis."""
        return [Layer(*each) for each in zip(*(part.split(1) for part in self), strict=True)]


class AdapterNetwork(nn.Module):
    """One linear layer z = Ax + c for each member, with or without a linear head on its outputs."""

    def __init__(
        self, starts: Sequence[Affine], heads: Sequence[LinearHead], shifts: bool = True
    ) -> None:
        super().__init__()
        self.shifts = shifts  # whether points include c, whose gradient may be rounding errors only
        self.weight = _members([start.matrix for start in starts])
        self.bias = _members([start.offset[None] for start in starts])
        self.coef = _members([head.coef_ for head in heads]) if heads else None
        self.intercept = _members([head.intercept_[None] for head in heads]) if heads else None

    def forward(self, X: Tensor) -> Adapted:
        """Adapt points (n, d) or (K, n, d), and apply the heads."""
        # In this form the gradient needs no transposition.
        points = torch.bmm(self.weight, X.expand(len(self.weight), *X.shape[-2:]).mT).mT
        points = points + self.bias if self.shifts else points
        reader = self.reader()
        if reader is None:
            return Adapted(points, None)
        coef, intercept = reader
        outputs = torch.baddbmm(intercept, X.expand(len(coef), *X.shape[-2:]), coef.mT)
        return Adapted(points, outputs, reader)

    def reader(self) -> tuple[Tensor, Tensor] | None:
        """Maps from inputs to heads' outputs: (K, n_outputs, d), and offsets (K, 1, n_outputs)."""
        if self.coef is None or self.intercept is None:
            return None
        offset = torch.baddbmm(self.intercept, self.bias, self.coef.mT)
        return torch.bmm(self.coef, self.weight), offset

    @property
    def layer(self) -> Layer:
        """The linear layers, on which a penalty may depend."""
        return Layer(self.weight, self.bias)

    def member_state(self, member: int) -> dict[str, Tensor]:
        """Copy the weights of a member, by name and without the member axis."""
        return {name: value[member].clone() for name, value in self.state_dict().items()}

    def train_parts(self, layer: bool, head: bool) -> None:
        """Choose whether the layer and the head are trained."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(layer if name in ("weight", "bias") else head)


def _members(starts: Sequence[Floats]) -> nn.Parameter:
    # The optimizer would copy tensors that are not contiguous.
    rows = np.ascontiguousarray(np.stack(starts), dtype=np.float32)
    return nn.Parameter(torch.tensor(rows))


def layer_map(state: dict[str, Tensor]) -> Affine:
    """Return the layer in float64, from the weights of a member."""
    weight, bias = (state[name].cpu().double().numpy() for name in ("weight", "bias"))
    return Affine(weight, bias[0])


class Rates(NamedTuple):
    """Learning rates of a member; `read_lr` replaces `lr` for the first `n_read` outputs."""

    # The head reads these outputs, which are sums over all inputs: with few rows, Adam's first
    # steps, of similar size for all weights, would move them far.
    lr: float
    weight_decay: float = 0.0
    read_lr: float = 0.0
    n_read: int = 0


class MemberAdamW(torch.optim.Optimizer):
    """Fused AdamW over parameters (K, ...), with the rates of each member times `lr`."""

    def __init__(self, params: Iterable[Tensor], rates: Sequence[Rates], lr: float = 1.0) -> None:
        super().__init__(params, {"lr": lr})
        self.rates = list(rates)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step, for which `closure` computes the gradients."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        (group,) = self.param_groups
        trained = [parameter for parameter in group["params"] if parameter.grad is not None]
        states = [self._state(parameter) for parameter in trained]
        steps = [state["step"] for state in states]
        kinds = [
            trained,
            [cast(Tensor, parameter.grad) for parameter in trained],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
        ]
        stop = 0
        for rates, run in groupby(self.rates):
            start, stop = stop, stop + len(list(run))
            own, grads, means, squares = kinds
            if stop - start < len(self.rates):
                own, grads, means, squares = ([each[start:stop] for each in kind] for kind in kinds)
            is_last = stop == len(self.rates)
            read = [_first_outputs(part, rates.n_read) for part in own if rates.n_read]
            before = [part.clone() for part in read]
            adamw(
                own,
                grads,
                means,
                squares,
                [],
                steps if is_last else [step.clone() for step in steps],  # adamw adds 1 in place
                lr=group["lr"] * rates.lr,
                weight_decay=rates.weight_decay,
                **_ADAM,
            )
            for part, old in zip(read, before, strict=True):
                part.lerp_(old, 1 - rates.read_lr / rates.lr)
        return loss

    def keep(self, members: Sequence[int]) -> None:
        """Keep only the given members; the parameters have been reduced already."""
        self.rates = [self.rates[member] for member in members]
        for state in self.state.values():
            index = torch.tensor(members, device=state["exp_avg"].device)
            state["exp_avg"] = state["exp_avg"][index]
            state["exp_avg_sq"] = state["exp_avg_sq"][index]

    def _state(self, parameter: Tensor) -> dict[str, Any]:
        if parameter not in self.state:
            zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self.state[parameter] = zeros | {"step": parameter.new_zeros(())}
        return self.state[parameter]


def _first_outputs(parameter: Tensor, n: int) -> Tensor:
    """Return the part of weights (K, d, d) or a bias (K, 1, d) that makes the first n outputs."""
    return parameter[:, :n] if parameter.shape[1] > 1 else parameter[..., :n]
