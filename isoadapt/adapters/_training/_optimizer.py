"""AdamW for several members, with separate learning rates for each."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adamw import adamw


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
    """Fused AdamW over parameters (K, ...), with separate rates for each member.

    Adjacent members with equal rates are stepped together, so members should be sorted by rates.
    Parameters without a gradient are not changed. `lr` has no effect: skorch passes it to every
    optimizer.
    """

    def __init__(
        self, params: Iterable[Tensor], rates: Sequence[Rates], lr: float | None = None
    ) -> None:
        super().__init__(params, {})
        self.rates = list(rates)
        self.factor = 1.0  # multiplies all learning rates

    def __getstate__(self) -> dict[str, Any]:
        """Add the rates, which the base class does not pickle."""
        return {**super().__getstate__(), "rates": self.rates, "factor": self.factor}

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
                [_gradient(parameter)[members] for parameter in trained],
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


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
