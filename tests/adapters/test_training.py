"""Parts of the training: hand-written gradients, and the optimizer of several members."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from isoadapt.adapters._training._loop import _MeanSquare
from isoadapt.adapters._training._networks import (
    LinearNetwork,
    MemberAdamW,
    MLPNetwork,
    Rates,
    _LinearAndProduct,
)
from tests.adapters.examples import network_and_points

K, N, D, C = 2, 5, 4, 3


def draw(*shape, seed=0, grad=True):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=grad)


@pytest.mark.parametrize("kind", [LinearNetwork, MLPNetwork])
def test_map_is_the_network_in_float64(kind):
    network, points = network_and_points(kind, members=2)
    outputs = network(points).detach()
    for member in range(2):
        found = network.map(member)(points.double().numpy())
        np.testing.assert_allclose(found, outputs[member], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [(N, D), (K, N, D)], ids=["shared rows", "own rows"])
def test_linear_layer_and_product_have_the_right_values_and_gradients(rows):
    X, weight, coef = draw(*rows, grad=False), draw(K, D, D, seed=1), draw(K, C, D, seed=2)
    assert gradcheck(_LinearAndProduct.apply, (X, weight, coef))
    points, product = _LinearAndProduct.apply(X, weight, coef)
    torch.testing.assert_close(points, X @ weight.mT)
    torch.testing.assert_close(product, coef @ weight)


@pytest.mark.parametrize("classifies", [True, False])
@pytest.mark.parametrize("diagonal", [True, False])
def test_mean_square_of_moments_is_the_mean_over_points(diagonal, classifies):
    root = draw(1, 1 if diagonal else D, D, seed=3, grad=False)
    mean = draw(1, D, 1, seed=4, grad=False)
    coef, shift = draw(K, C, D), draw(K, C, 1, seed=1)
    assert gradcheck(_MeanSquare.apply, (coef, shift, root, mean, classifies))
    matrix = root.expand(1, D, D).diag_embed()[0, 0] if diagonal else root[0]
    # The points mean ± √d R eᵢ have this mean and the covariance RRᵀ.
    points = (mean + D**0.5 * torch.cat([matrix, -matrix], 1)).expand(K, D, 2 * D)
    change = coef @ points + shift
    if classifies:
        change = change - change.mean(1, keepdim=True)
    squares = change.square().sum(1) / (1 if classifies else C)
    value = _MeanSquare.apply(coef, shift, root, mean, classifies)
    torch.testing.assert_close(value, squares.mean(-1))


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
