"""Parts of the training: the network, the ridge, the loop of skorch, and the optimizer."""

import numpy as np
import pytest
import torch

from isoadapt import IsotropyLayer
from isoadapt.adapters._engine._loop import AdapterNet, OutputRidge
from isoadapt.adapters._engine._network import MemberAdamW, Rates, layer_map
from tests.adapters.examples import cone_with_head, network_and_points

K, D, C = 2, 4, 3


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_map_is_the_network_in_float64():
    network, points = network_and_points(members=2)
    outputs = network(points).points.detach()
    for member in range(2):
        found = layer_map(network.member_state(member))(points.double().numpy())
        np.testing.assert_allclose(found, outputs[member], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("classifies", [True, False])
@pytest.mark.parametrize("diagonal", [True, False])
def test_ridge_of_moments_is_the_mean_over_points(diagonal, classifies):
    root, mean = draw(1, 1 if diagonal else D, D, seed=3), draw(1, D, 1, seed=4)
    coef, shift = draw(K, C, D), draw(K, 1, C, seed=1)
    matrix = root.expand(1, D, D).diag_embed()[0, 0] if diagonal else root[0]
    # The points mean ± √d R eᵢ have this mean and the covariance RRᵀ.
    points = (mean + D**0.5 * torch.cat([matrix, -matrix], 1)).expand(K, D, 2 * D)
    change = coef @ points + shift.mT
    if classifies:
        change = change - change.mean(1, keepdim=True)
    squares = change.square().sum(1) / (1 if classifies else C)
    weights = torch.tensor([2.0, 0.5], dtype=torch.float64)
    start = 0 * coef, 0 * shift
    ridge = OutputRidge(classifies, weights, *start, mean, root)
    torch.testing.assert_close(ridge((coef, shift)), weights * squares.mean(-1))


def test_the_loop_notifies_of_what_skorch_does(monkeypatch):
    notify, names = AdapterNet.notify, []

    def noted(net, name, **given):
        names.extend([name] if "batch" in name or "grad" in name else [])
        if name == "on_grad_computed":
            assert dict(given["named_parameters"])["weight"].grad is not None
        assert name != "on_batch_end" or given["loss"].shape == (1,)
        return notify(net, name, **given)

    monkeypatch.setattr(AdapterNet, "notify", noted)
    X, y, head = cone_with_head()
    IsotropyLayer(head, max_epochs=2, batch_size=100, validation_fraction=None).fit(X, y)
    assert names == ["on_batch_begin", "on_grad_computed", "on_batch_end"] * 2 * 6


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


@pytest.mark.parametrize(("dropped", "kept"), [(None, [0, 1, 2]), (2, [0, 2]), (2, [1])])
def test_each_member_of_the_optimizer_is_trained_as_if_alone(dropped, kept):
    parameters = [torch.nn.Parameter(start(*shape)) for shape in SHAPES]
    optimizer = MemberAdamW(parameters, RATES)
    for step in range(6):
        if step == dropped:
            for parameter in parameters:
                parameter.data, parameter.grad = parameter.data[kept], None
            optimizer.keep(kept)
        optimizer.zero_grad()
        loss_of(parameters if step % 2 else parameters[:1], step).backward()
        optimizer.step()
    for place, member in enumerate(kept):
        for ours, theirs in zip(parameters, trained_alone(member, 6), strict=True):
            torch.testing.assert_close(ours[place], theirs)
