"""Test whether a model divides its loss by the label count that the Trainer passes to it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_RTOL = 1e-3  # two evaluations of the same loss on a GPU may differ by this much


@torch.no_grad()
def divides_by_count(loss: Callable[[Any], Tensor], model: nn.Module, n_items: Any) -> bool | None:
    """Compare the loss of a batch for `n_items` and for twice that label count.

    `loss` maps a label count to the loss, averaged over all processes. The result is None if the
    loss is zero or not finite. The signature of a model is not enough to decide: many models
    accept the count and ignore it.
    """
    training = model.training
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    with torch.random.fork_rng(devices=devices):
        model.eval()
        try:
            once, twice = loss(n_items), loss(2 * n_items)
        finally:
            model.train(training)
    if not bool(once.isfinite()) or not bool(once):
        return None
    return bool((once - twice).abs() > _RTOL * once.abs())
