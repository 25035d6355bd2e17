"""Whether a task loss is divided by the number of labels that the Trainer tells it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_RTOL = 1e-3  # between two evaluations of one loss on a GPU


@torch.no_grad()
def divides_by_count(loss: Callable[[Any], Tensor], model: nn.Module, n_items: Any) -> bool | None:
    """Evaluate a batch's loss with two label counts, in evaluation mode; None if it has no loss.

    `loss` maps the count to the loss, averaged over all processes. The class of a model does not
    tell whether the loss takes the count: many models accept the keyword and ignore it.
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
