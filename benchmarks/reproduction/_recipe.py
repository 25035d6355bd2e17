"""The training settings of a run."""

from typing import Any, NamedTuple

# Further settings that records hold, and on which their keys depend; every run has these.
FIXED: dict[str, Any] = {
    "optimiser": "adamw",
    "accumulation": 1,
    "half": False,
    "validation": 0.0,
}
SCHEDULES = {"linear": "linear", "constant": "constant_with_warmup"}


class Recipe(NamedTuple):
    """Training settings that differ between tasks or experiments."""

    epochs: int = 3
    lr: float = 5e-5  # highest learning rate
    batch_size: int = 32
    warmup: float = 0.1  # share of the steps over which the learning rate rises
    weight_decay: float | None = None  # None: lr / 10
    schedule: str = "linear"  # after the warm-up: "linear" decay to 0, or "constant"

    def recorded(self) -> dict[str, Any]:
        """Return the settings as records hold them."""
        return self._asdict() | FIXED

    def arguments(self) -> dict[str, Any]:
        """Return arguments of the Trainer."""
        return {
            "num_train_epochs": self.epochs,
            "learning_rate": self.lr,
            "per_device_train_batch_size": self.batch_size,
            "warmup_steps": self.warmup,
            "weight_decay": self.lr / 10 if self.weight_decay is None else self.weight_decay,
            "lr_scheduler_type": SCHEDULES[self.schedule],
        }
