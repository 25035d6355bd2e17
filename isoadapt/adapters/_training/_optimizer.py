"""AdamW for several members, each at its own learning rate."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw


class MemberAdamW(torch.optim.Optimizer):
    """Fused AdamW over parameters (K, ...) with a learning rate and a weight decay a member.

    Neighbours of equal rates are stepped together, so members are best sorted by them.

    Parameters
    ----------
    params : iterable of Parameter
        What is trained; those without a gradient stay as they are.
    lr : sequence of float
        Learning rate of each member.
    weight_decay : sequence of float
        Weight decay of each member.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: Sequence[float], weight_decay: Sequence[float]
    ) -> None:
        super().__init__(params, {})
        self.rates = list(zip(lr, weight_decay, strict=True))
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
        for (lr, weight_decay), run in groupby(self.rates):
            members = slice(start, start + len(list(run)))
            start = members.stop
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
                lr=self.factor * lr,
                weight_decay=weight_decay,
                eps=1e-8,
                maximize=False,
            )
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


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
