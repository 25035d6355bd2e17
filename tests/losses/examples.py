"""Points for the penalties, and a penalty's value with its gradient."""

import numpy as np
import torch


def cloud(*shape, seed=0, decay=0.5, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=shape) * np.arange(1, shape[-1] + 1) ** -decay + rng.normal(size=shape[-1])
    return torch.tensor(X, dtype=dtype)


def value_and_gradient(loss, Z, *arguments):
    Z = Z.detach().clone().requires_grad_()
    value = loss(Z, *arguments)
    (gradient,) = torch.autograd.grad(value.sum(), Z)
    return value.detach(), gradient
