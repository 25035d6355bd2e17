"""MemberAdamW against torch's own AdamW, one optimiser a member."""

import pytest
import torch

from isoadapt.adapters._training._optimizer import MemberAdamW

LR = [1e-3, 1e-3, 1e-2]
DECAY = [0.1, 0.1, 0.1]


def start(*shape):
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))


def loss_of(parameters, step):
    return sum(
        ((p - step) ** 2 * torch.arange(1, p[0].numel() + 1).view_as(p[0])).sum()
        for p in parameters
    )


def alone(member, steps):
    parameters = [start(4, 2)[member].clone().requires_grad_(), start(5)[member].clone()]
    parameters[1].requires_grad_()
    optimizer = torch.optim.AdamW(parameters, lr=LR[member], weight_decay=DECAY[member], fused=True)
    for step in range(steps):
        optimizer.zero_grad()
        trained = parameters if step % 2 else parameters[:1]  # the second rests now and then
        loss_of([p[None] for p in trained], step).backward()
        optimizer.step()
    return parameters


@pytest.mark.parametrize("dropped", [None, 2])
@pytest.mark.parametrize("kept", [[0, 2], [1, 2], [1]])
def test_each_member_moves_as_if_alone(dropped, kept):
    parameters = [torch.nn.Parameter(start(4, 2)), torch.nn.Parameter(start(5))]
    optimizer = MemberAdamW(parameters, lr=LR, weight_decay=DECAY)
    members = [0, 1, 2]
    for step in range(6):
        if step == dropped:
            members = kept
            for parameter in parameters:
                parameter.data, parameter.grad = parameter.data[members], None
            optimizer.keep(members)
        optimizer.zero_grad()
        loss_of(parameters if step % 2 else parameters[:1], step).backward()
        optimizer.step()
    for place, member in enumerate(members):
        for ours, theirs in zip(parameters, alone(member, 6), strict=True):
            torch.testing.assert_close(ours[place], theirs)
