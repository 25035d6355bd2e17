"""What can be chosen by name: training settings of the papers, and penalties with their places."""

from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

from isoadapt.adapters._registry import REGISTRY

if TYPE_CHECKING:
    from torch import nn

HEAD_INPUT, LAST, ALL, OUTPUT_EMBEDDINGS = "head_input", "last", "all", "output_embeddings"
PLACES = (HEAD_INPUT, LAST, ALL)


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


PENALTIES = {name: method.loss for name, method in REGISTRY.items() if method.loss is not None}
"""Penalties by the names that the methods have everywhere, ``isoadapt.adapters.METHODS``."""


def penalty_options(
    penalty: "str | nn.Module | None", lam: float, balance: str | None, where: Any
) -> dict[str, Any]:
    """Return arguments of the IsotropyTrainer; `where` None is the place of the penalty's paper."""
    if penalty is None and (lam != 1.0 or balance is not None or where is not None):
        raise ValueError(
            f"lam={lam!r}, balance={balance!r} and where={where!r} have no effect without a "
            "penalty: pass penalty=, or leave them out"
        )
    place = HEAD_INPUT
    if isinstance(penalty, str):
        method = PENALTIES[penalty]
        penalty, place = method.make(), method.where
    if where is None:
        where = place
    elif isinstance(where, Integral):
        where = [where]
    return {"penalty": penalty, "lam": lam, "balance": balance, "where": where}
