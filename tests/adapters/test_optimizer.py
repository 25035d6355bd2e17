"""MemberAdamW equals one AdamW of torch for each member."""

import pytest
import torch

from isoadapt.adapters._training._networks import MemberAdamW, Rates

SHAPES = [(4, 2), (1, 4)]  # weights and bias of a layer
RATES = [Rates(1e-3, 0.1), Rates(1e-3, 0.1, 2e-4, 3), Rates(1e-2, 0.1, 1e-3, 1)]


def start(*shape):
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))


def loss_of(parameters, step):
    return sum(
        ((p - step) ** 2 * torch.arange(1, p[0].numel() + 1).view_as(p[0])).sum()
        for p in parameters
    )


def trained_alone(member, steps):
    """Parameters of a member after steps of torch's AdamW; even steps do not train the bias."""
    rates = RATES[member]
    leaves = []
    for shape in SHAPES:
        values = start(*shape)[member]
        read, rest = values.split([rates.n_read, 4 - rates.n_read], dim=int(len(values) == 1))
        leaves.append([read.clone().requires_grad_(), rest.clone().requires_grad_()])
    groups = [
        {"params": [pair[0] for pair in leaves], "lr": rates.read_lr},
        {"params": [pair[1] for pair in leaves], "lr": rates.lr},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=rates.weight_decay, fused=True)
    joined = []
    for step in range(steps):
        optimizer.zero_grad()
        joined = [torch.cat(pair, dim=k) for k, pair in enumerate(leaves)]
        loss_of([p[None] for p in (joined if step % 2 else joined[:1])], step).backward()
        optimizer.step()
    return [torch.cat(pair, dim=k) for k, pair in enumerate(leaves)]


@pytest.mark.parametrize("dropped", [None, 2])
@pytest.mark.parametrize("kept", [[0, 2], [1, 2], [1]])
def test_each_member_is_trained_as_if_alone(dropped, kept):
    parameters = [torch.nn.Parameter(start(*shape)) for shape in SHAPES]
    optimizer = MemberAdamW(parameters, RATES)
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
        for ours, theirs in zip(parameters, trained_alone(member, 6), strict=True):
            torch.testing.assert_close(ours[place], theirs)
