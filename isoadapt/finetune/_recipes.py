"""How the papers fine-tune; fields that a paper does not give have the default value."""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """How to fine-tune.

    Attributes
    ----------
    epochs : int
        Passes over the texts.
    lr : float
        Highest learning rate.
    batch_size : int
        Texts in a batch.
    warmup : float
        Share of the steps over which the learning rate rises.
    weight_decay : float or None
        None is a tenth of `lr`.
    schedule : {"linear", "constant"}
        What the learning rate does after the warm-up: fall to 0, or stay.
    optimiser : {"adamw", "adam"}
        "adam" adds the decay to the gradient.
    accumulation : int
        Batches whose gradients are averaged into a step.
    half : bool
        Mixed precision, on a GPU only.
    validation : float
        Share of the texts held out to choose the best epoch by; 0 keeps the last.
    """

    epochs: int = 3
    lr: float = 5e-5
    batch_size: int = 32
    warmup: float = 0.1
    weight_decay: float | None = None
    schedule: str = "linear"
    optimiser: str = "adamw"
    accumulation: int = 1
    half: bool = False
    validation: float = 0.0

    @property
    def decay(self) -> float:
        """Weight decay as a number.

        Returns
        -------
        float
        """
        return self.lr / 10 if self.weight_decay is None else self.weight_decay


RECIPES = {
    # "Shrink the Longest", section 4 and table 1: Adam, linear warm-up over 10 % of the steps,
    # batch 64, 10 epochs, weight decay lr / 10; CoLA's learning rate (MRPC has 8e-5).
    "topological-entropy": Recipe(epochs=10, lr=5e-5, batch_size=64, warmup=0.1, optimiser="adam"),
    # "Stable Anisotropic Regularization", section 4.1: tuned over epochs 3-5, learning rates 1e-5,
    # 3e-5, 5e-5 and batches 8, 16, 32, of which the middle stands here; two batches a step, mixed
    # precision.
    "istar": Recipe(epochs=4, lr=3e-5, batch_size=16, accumulation=2, half=True),
    # The Isotropy Layer's paper, section 4.1: AdamW, early stopping by the task's metric on 30 % of
    # the training rows.
    "isotropy-layer": Recipe(optimiser="adamw", validation=0.3),
    # "On Isotropy Calibration of Transformers", appendix B: BERT and DistilBERT, no schedule;
    # RoBERTa has 1e-5, MRPC and WNLI 5 epochs.
    "isotropy-calibration": Recipe(
        epochs=3, lr=2e-5, batch_size=32, warmup=0.0, schedule="constant"
    ),
}


def make_recipe(name: str | None, **changes: Any) -> Recipe:
    """Give a paper's recipe, or the default one, with the fields that the user sets.

    Parameters
    ----------
    name : str or None
        A key of ``RECIPES``; None is the default.
    **changes : object
        Fields by name; None leaves the recipe's value.

    Returns
    -------
    Recipe
        The recipe.
    """
    given = {field: value for field, value in changes.items() if value is not None}
    return replace(RECIPES[name] if name else Recipe(), **given)
