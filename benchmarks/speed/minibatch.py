"""IsotropyLayer against a loop in plain torch, and IStarAdapter against it, all in one thread."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks._data import Embeddings, load_embeddings, narrow_cone, stored_tasks
from benchmarks.speed._harness import Comparison, compare
from isoadapt import IsotropyLayer, IStarAdapter
from isoadapt._utils.threads import one_thread
from isoadapt.adapters import _istar
from isoadapt.geometry._isoscore import isoscore_star

BATCH_SIZE = 64
EPOCHS = 10
LR = 1e-3
RIDGE = 1.0
TARGET = 0.9
ISTAR_TARGET = 1 / 1.5  # of IsotropyLayer's speed


def run(quick: bool) -> list[Comparison]:
    """Measure whole fits and the loop alone, against plain loops with two settings of AdamW.

    The target applies to the default settings of AdamW, which such loops commonly use. Then measure
    default fits of IStarAdapter.
    """
    data = load_embeddings("cola") if "cola" in stored_tasks() else narrow_cone(8551, 384, seed=0)
    repeats, epochs = (1, 1) if quick else (3, EPOCHS)
    return [
        *_compare(data, repeats, epochs, TARGET),
        *_compare(data, repeats, epochs, None, fused=True),
        *_compare_istar(data, repeats, epochs),
    ]


def _compare(
    data: Embeddings, repeats: int, epochs: int, target: float | None, **adamw: Any
) -> list[Comparison]:
    """Return two comparisons of the same runs: the whole `fit`, and only the epochs."""
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
    loops: list[float] = []

    def ours() -> None:
        layer.fit(data.X_train, data.y_train)
        loops.append(sum(epoch["dur"] for epoch in layer.history_))

    def reference() -> None:
        with one_thread():  # as the layer does, since its steps are small
            BareLoop(data, **adamw).train(epochs)

    settings = ", ".join(f"{key}={value}" for key, value in adamw.items()) or "defaults"
    whole = compare(
        f"IsotropyLayer, whole fit, against bare loop (AdamW {settings})",
        ours,
        reference,
        repeats=repeats,
        target=target,
        n=len(data.X_train),
        d=data.X_train.shape[1],
        epochs=epochs,
        batch_size=BATCH_SIZE,
        data=data.name,
        threads=1,
    )
    name = whole.name.replace("whole fit", "loop only")
    timed = tuple(loops[1:])  # without the warm-up
    return [whole, replace(whole, name=name, ours_s=timed, target=None)]


def _compare_istar(data: Embeddings, repeats: int, epochs: int) -> list[Comparison]:
    """Compare IStarAdapter with IsotropyLayer, and with itself with ‖Σ_S‖² exact in each step."""
    settings = {"max_epochs": epochs, "patience": None, "device": "cpu", "random_state": 0}

    def fit(kind: type) -> None:
        kind(data.head, **settings).fit(data.X_train, data.y_train)

    def fit_exactly() -> None:
        with patch.object(_istar, "_STEPS", 1):
            fit(IStarAdapter)

    facts = {"n": len(data.X_train), "d": data.X_train.shape[1], "epochs": epochs}
    references = [
        ("IsotropyLayer at equal epochs", lambda: fit(IsotropyLayer), ISTAR_TARGET),
        ("‖Σ_S‖² computed in each step", fit_exactly, None),
    ]
    return [
        compare(
            f"IStarAdapter, default fit, against {name}",
            lambda: fit(IStarAdapter),
            reference,
            repeats=repeats,
            target=target,
            data=data.name,
            **facts,
        )
        for name, reference, target in references
    ]


class BareLoop:
    """Joint training of a linear layer with a frozen head, written in plain torch."""

    def __init__(self, data: Embeddings, **adamw: Any) -> None:
        self.X = torch.from_numpy(data.X_train)
        self.y = torch.from_numpy(data.y_train)
        self.coef = torch.tensor(data.head.coef_, dtype=torch.float32)
        self.contrast, self.variances = self.coef - self.coef.mean(0), self.X.var(0)
        self.intercept = torch.tensor(data.head.intercept_, dtype=torch.float32)
        d = self.X.shape[1]
        self.layer = nn.Linear(d, d)
        nn.init.eye_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.optimizer = torch.optim.AdamW(
            self.layer.parameters(), lr=LR, weight_decay=0.0, **adamw
        )
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
