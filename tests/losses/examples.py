"""Points for the penalties, and a penalty's value with its gradient."""

import torch

from tests.geometry import examples


def cloud(*shape, seed=0, decay=0.5, dtype=torch.float64):
    return torch.tensor(examples.cloud(*shape, seed=seed, decay=decay), dtype=dtype)


def value_and_gradient(loss, Z, *arguments):
    Z = Z.detach().clone().requires_grad_()
    value = loss(Z, *arguments)
    (gradient,) = torch.autograd.grad(value.sum(), Z)
    return value.detach(), gradient
