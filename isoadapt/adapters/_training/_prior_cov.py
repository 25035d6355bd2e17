"""The covariance of a network's outputs over the training rows."""

import torch
from torch import Tensor

from isoadapt.adapters._training._batches import Batches
from isoadapt.adapters._training._networks import LinearNetwork
from isoadapt.geometry import Moments

_CHUNK = 8192


@torch.no_grad()
def outputs_covariance(network: LinearNetwork, batches: Batches, n_rows: int) -> Tensor:
    """Return the covariance (K, d, d) of the outputs, from at most `n_rows` evenly spaced rows."""
    n = batches.index.shape[-1]
    index = batches.index[..., :: -(-n // n_rows)]
    moments = [Moments() for _ in network.weight]
    for chunk in index.split(_CHUNK, dim=-1):
        rows = batches.rows.take(chunk)
        weights = None if rows.weights is None else rows.weights.expand(len(moments), -1)
        for k, points in enumerate(network(rows.X)):
            moments[k].update(points, None if weights is None else weights[k])
    return torch.stack([member.covariance() for member in moments]).to(network.weight)
