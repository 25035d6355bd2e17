"""IsotropyLayer against a loop in plain torch, and IStarAdapter against IsotropyLayer."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
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
    yield _against_loop(data, repeats, epochs)

    def fit(kind: type) -> None:
        settings = {"max_epochs": epochs, "patience": None, "device": "cpu", "random_state": 0}
        kind(data.head, **settings).fit(data.X_train, data.y_train)

    yield compare(
        "IStarAdapter, default fit, against IsotropyLayer at equal epochs",
        lambda: fit(IStarAdapter),
        lambda: fit(IsotropyLayer),
        repeats=repeats,
        target=1 / 1.5,
        rows=data.X_train,
    )


def _against_loop(data: Embeddings, repeats: int, epochs: int) -> Comparison:
    """Compare the whole fit of a layer with the loop."""
    layer = IsotropyLayer(
        data.head,
        validation_fraction=None,
        max_epochs=epochs,
        batch_size=BATCH_SIZE,
        lr=LR,
        ridge=RIDGE,
        device="cpu",
        random_state=0,
    )
    return compare(
        "IsotropyLayer, whole fit, against bare loop (AdamW defaults)",
        lambda: layer.fit(data.X_train, data.y_train),
        lambda: BareLoop(data).train(epochs),
        repeats=repeats,
        target=0.9,
        rows=data.X_train,
    )


class BareLoop:
    """Joint training of a linear layer with a frozen head, written in plain torch."""

    def __init__(self, data: Embeddings) -> None:
        self.X = torch.from_numpy(data.X_train)
        self.y = torch.from_numpy(data.y_train)
        self.coef = torch.tensor(data.head.coef_, dtype=torch.float32)
        self.contrast, self.variances = self.coef - self.coef.mean(0), self.X.var(0)
        self.intercept = torch.tensor(data.head.intercept_, dtype=torch.float32)
        d = self.X.shape[1]
        self.layer = nn.Linear(d, d)
        nn.init.eye_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        parameters = self.layer.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=LR, weight_decay=0.0)
        self.generator = torch.Generator().manual_seed(0)
        self.means, self.step = torch.zeros(2), 0

    def train(self, epochs: int) -> list[float]:
        """Run the epochs and return their mean losses."""
        return [self._epoch() for _ in range(epochs)]

    def _epoch(self) -> float:
        total = 0.0
        for index in torch.randperm(len(self.X), generator=self.generator).split(BATCH_SIZE):
            self.optimizer.zero_grad()
            loss = self._loss(self.X[index], self.y[index])
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(index)
        return total / len(self.X)

    def _loss(self, X: Tensor, y: Tensor) -> Tensor:
        adapted = self.layer(X)
        task = F.cross_entropy(F.linear(adapted, self.coef, self.intercept), y)
        score = isoscore_star(adapted, bias_corrected=True)
        task = task + RIDGE * self._change()
        return self._balanced(torch.stack([task, -score.clamp(1e-6, 1).log()])).sum()

    def _change(self) -> Tensor:
        """Return the mean squared change of the logits, for uncorrelated columns."""
        spread = self.contrast @ self.layer.weight - self.contrast
        return (spread.square() @ self.variances + (self.contrast @ self.layer.bias).square()).sum()

    def _balanced(self, losses: Tensor) -> Tensor:
        """Return both losses, scaled to the average of their moving means."""
        rate = 0.15 / (1 + self.step) if self.step else 1.0
        self.means = self.means.lerp(losses.detach().abs(), rate)
        self.step += 1
        means = self.means.clamp(min=1e-3)
        return losses * (means.mean() / means)
