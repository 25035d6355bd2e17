"""Hand-written gradients against finite differences."""

import pytest
import torch
from torch.autograd import gradcheck

from isoadapt.adapters._training._loop import _MeanSquare
from isoadapt.adapters._training._networks import _LinearAndProduct

K, N, D, C = 2, 5, 4, 3


def draw(*shape, seed=0, grad=True):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=grad)


@pytest.mark.parametrize("rows", [(N, D), (K, N, D)], ids=["shared rows", "own rows"])
class TestLinearAndProduct:
    def test_gradients(self, rows):
        X, weight, coef = draw(*rows, grad=False), draw(K, D, D, seed=1), draw(K, C, D, seed=2)
        assert gradcheck(_LinearAndProduct.apply, (X, weight, coef))

    def test_values(self, rows):
        X, weight, coef = draw(*rows), draw(K, D, D, seed=1), draw(K, C, D, seed=2)
        points, product = _LinearAndProduct.apply(X, weight, coef)
        torch.testing.assert_close(points, X @ weight.mT)
        torch.testing.assert_close(product, coef @ weight)

    def test_frozen_parts_get_no_gradient(self, rows):
        X = draw(*rows, grad=False)
        for trained in (0, 1):
            parts = draw(K, D, D, seed=1, grad=trained == 0), draw(K, C, D, grad=trained == 1)
            points, product = _LinearAndProduct.apply(X, *parts)
            (points.sum() + product.sum()).backward()
            assert parts[trained].grad is not None
            assert parts[1 - trained].grad is None


@pytest.mark.parametrize("classifies", [True, False])
@pytest.mark.parametrize("diagonal", [True, False])
class TestMeanSquare:
    def parts(self, diagonal):
        root = draw(1, 1 if diagonal else D, D, seed=3, grad=False)
        return draw(K, C, D), draw(K, C, 1, seed=1), root, draw(1, D, 1, seed=4, grad=False)

    def test_gradients(self, diagonal, classifies):
        assert gradcheck(_MeanSquare.apply, (*self.parts(diagonal), classifies))

    def test_value_equals_the_mean_over_points(self, diagonal, classifies):
        coef, shift, root, mean = self.parts(diagonal)
        matrix = root.expand(1, D, D).diag_embed()[0, 0] if diagonal else root[0]
        # The points mean ± √d R eᵢ have this mean and the covariance RRᵀ.
        points = (mean + D**0.5 * torch.cat([matrix, -matrix], 1)).expand(K, D, 2 * D)
        change = coef @ points + shift
        if classifies:
            change = change - change.mean(1, keepdim=True)
        squares = change.square().sum(1) / (1 if classifies else C)
        value = _MeanSquare.apply(coef, shift, root, mean, classifies)
        torch.testing.assert_close(value, squares.mean(-1))
