"""Training settings of the papers; settings that a paper does not report keep their default."""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """Settings of a fine-tuning run."""

    epochs: int = 3
    lr: float = 5e-5  # highest learning rate
    batch_size: int = 32
    warmup: float = 0.1  # share of the steps over which the learning rate rises
    weight_decay: float | None = None  # None: lr / 10
    schedule: str = "linear"  # after the warm-up: "linear" decay to 0, or "constant"
    optimiser: str = "adamw"  # or "adam", which adds the weight decay to the gradient
    accumulation: int = 1  # batches whose gradients are averaged for one step
    half: bool = False  # mixed precision; on a GPU only
    validation: float = 0.0  # share held out to choose the best epoch; 0 keeps the last epoch

    @property
    def decay(self) -> float:
        """Weight decay as a number, also where `weight_decay` is None."""
        return self.lr / 10 if self.weight_decay is None else self.weight_decay


RECIPES = {
    # "Shrink the Longest", section 4 and table 1: Adam, linear warm-up over 10 % of the steps,
    # batch 64, 10 epochs, weight decay lr / 10; the learning rate is that of CoLA (MRPC: 8e-5).
    "topological-entropy": Recipe(epochs=10, lr=5e-5, batch_size=64, warmup=0.1, optimiser="adam"),
    # "Stable Anisotropic Regularization", section 4.1: tuned over 3-5 epochs, learning rates 1e-5,
    # 3e-5, 5e-5 and batch sizes 8, 16, 32, of which these are the middle values; gradients
    # accumulated over two batches, mixed precision.
    "istar": Recipe(epochs=4, lr=3e-5, batch_size=16, accumulation=2, half=True),
    # The paper of the Isotropy Layer, section 4.1: AdamW, early stopping by the metric of the task
    # on 30 % of the training rows.
    "isotropy-layer": Recipe(optimiser="adamw", validation=0.3),
    # "On Isotropy Calibration of Transformers", appendix B: the values for BERT and DistilBERT, no
    # schedule; the learning rate for RoBERTa is 1e-5, and MRPC and WNLI have 5 epochs.
    "isotropy-calibration": Recipe(
        epochs=3, lr=2e-5, batch_size=32, warmup=0.0, schedule="constant"
    ),
}


def make_recipe(name: str | None, **changes: Any) -> Recipe:
    """Return the recipe `name`, or the default for None, with all `changes` that are not None."""
    given = {field: value for field, value in changes.items() if value is not None}
    return replace(RECIPES[name] if name else Recipe(), **given)
