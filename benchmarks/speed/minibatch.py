"""IsotropyLayer against a loop in plain torch, and IStarAdapter against IsotropyLayer."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks._data import Embeddings, load_embeddings
from benchmarks.speed._harness import Comparison, compare
from isoadapt import IsotropyLayer, IStarAdapter
from isoadapt.geometry._isoscore import isoscore_star

LR, RIDGE, BATCH_SIZE = 1e-3, 1.0, 64


def run(quick: bool) -> Iterator[Comparison]:
    """Compare whole fits with the loop, then the two adapters."""
    data = load_embeddings("cola")
    repeats, epochs = (1, 1) if quick else (3, 10)
    common = {"max_epochs": epochs, "device": "cpu", "random_state": 0}
    of_loop = {"validation_fraction": None, "batch_size": BATCH_SIZE, "lr": LR, "ridge": RIDGE}
    layer = IsotropyLayer(data.head, **common, **of_loop)
    yield compare(
        "IsotropyLayer, whole fit, against bare loop (AdamW defaults)",
        partial(layer.fit, data.X_train, data.y_train),
        partial(bare_loop, data, epochs),
        repeats=repeats,
        target=0.9,
        rows=data.X_train,
    )
    kinds = IStarAdapter, IsotropyLayer
    pair = (kind(data.head, patience=None, **common) for kind in kinds)
    yield compare(
        "IStarAdapter, default fit, against IsotropyLayer at equal epochs",
        *(partial(each.fit, data.X_train, data.y_train) for each in pair),
        repeats=repeats,
        target=1 / 1.5,
        rows=data.X_train,
    )


def bare_loop(data: Embeddings, epochs: int) -> float:
    """Train a linear layer jointly with a frozen head in plain torch; return the last loss."""
    X, y = torch.from_numpy(data.X_train), torch.from_numpy(data.y_train)
    given = data.head.coef_, data.head.intercept_
    coef, intercept = (torch.tensor(part, dtype=torch.float32) for part in given)
    contrast, variances = coef - coef.mean(0), X.var(0)
    layer = nn.Linear(X.shape[1], X.shape[1])
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=LR, weight_decay=0.0)
    generator, means, step, total = torch.Generator().manual_seed(0), torch.zeros(2), 0, 0.0
    for _ in range(epochs):
        total = 0.0
        for index in torch.randperm(len(X), generator=generator).split(BATCH_SIZE):
            optimizer.zero_grad()
            adapted = layer(X[index])
            task = F.cross_entropy(F.linear(adapted, coef, intercept), y[index])
            # The mean squared change of the logits, for uncorrelated columns.
            spread = contrast @ layer.weight - contrast
            change = (spread.square() @ variances + (contrast @ layer.bias).square()).sum()
            score = isoscore_star(adapted, bias_corrected=True)
            losses = torch.stack([task + RIDGE * change, -score.clamp(1e-6, 1).log()])
            # Both losses are scaled to the average of their moving means.
            means = means.lerp(losses.detach().abs(), 0.15 / (1 + step) if step else 1.0)
            floors, step = means.clamp(min=1e-3), step + 1
            loss = (losses * (floors.mean() / floors)).sum()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(index)
    return total / len(X)
