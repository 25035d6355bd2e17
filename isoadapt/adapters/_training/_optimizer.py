"""AdamW for several members, each at its own learning rate."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adamw import adamw


class Rates(NamedTuple):
    """Rates of a member: its first `n_read` outputs, which a head reads, take `read_lr` for `lr`.

    A step of Adam changes all weights alike, so the outputs of a head, sums over all inputs, move
    far in the first steps where rows are few.
    """

    lr: float
    weight_decay: float = 0.0
    read_lr: float = 0.0
    n_read: int = 0


class MemberAdamW(torch.optim.Optimizer):
    """Fused AdamW over parameters (K, ...) with rates of each member.

    Neighbours of equal rates are stepped together, so members are best sorted by them. Parameters
    without a gradient stay as they are. `lr` is what skorch passes to every optimizer; it has no
    effect.
    """

    def __init__(
        self, params: Iterable[Tensor], rates: Sequence[Rates], lr: float | None = None
    ) -> None:
        super().__init__(params, {})
        self.rates = list(rates)
        self.factor = 1.0  # on all learning rates

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Take one step.

        Parameters
        ----------
        closure : None
            Not used: the gradients are there already.
        """
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
        """Go on with some of the members; the parameters have been cut already.

        Parameters
        ----------
        members : sequence of int
            Which.
        """
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
    """What makes the first n outputs, of weights (K, d, d) or a bias (K, 1, d)."""
    return parameter[:, :n] if parameter.shape[1] > 1 else parameter[..., :n]


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
