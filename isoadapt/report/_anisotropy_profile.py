"""Plot of the isotropy of embeddings over a fine-tuning run."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from isoadapt.report._display import DASHES, Display, legend_beside

_ISOTROPY = {
    "isoscore_star": "IsoScore*\n(greater is more isotropic)",
    "anisotropy1": "anisotropy₁\n(smaller is more isotropic)",
    "anisotropy1_centered": "anisotropy₁, centred (EV1)\n(smaller is more isotropic)",
}
_LOSSES = {"task_loss": "task loss", "penalty": "penalty"}
_DRAWN = (*_ISOTROPY, "ev1", *_LOSSES)


class AnisotropyProfile(Display):
    """Plot of isotropy and losses over the steps of a fine-tuning run.

    Create it with :meth:`from_trainer` or :meth:`from_checkpoint`, which also draw it.

    Parameters
    ----------
    log_history : sequence of mapping
        ``trainer.state.log_history`` of an :class:`~isoadapt.finetune.IsotropyTrainer`. Entries
        without isotropy or losses, such as those of evaluations, are ignored.

    Attributes
    ----------
    figure_ : matplotlib Figure
        The figure.
    axes_ : ndarray of matplotlib Axes, shape (2,)
        Panel of the isotropy and panel of the losses.
    lines_ : dict of str to matplotlib Line2D
        The curves of those of ``isoscore_star``, ``anisotropy1``, ``anisotropy1_centered``,
        ``task_loss`` and ``penalty`` that are in the log. EV1 is the anisotropy₁ of centred points,
        so ``ev1`` and ``anisotropy1_centered`` share one curve.

    Raises
    ------
    ValueError
        If the log holds nothing to plot.

    Examples
    --------
    >>> from isoadapt.report import AnisotropyProfile
    >>> log = [{"step": 1, "isoscore_star": 0.2}, {"step": 2, "isoscore_star": 0.3}]
    >>> display = AnisotropyProfile(log).plot()  # doctest: +SKIP
    >>> display.figure_.savefig("profile.png")  # doctest: +SKIP
    """

    _panels = ("isotropy", "losses")
    _size = (8.5, 6)
    _stacked = True

    def __init__(self, log_history: Sequence[Mapping[str, Any]]) -> None:
        names = [name for name in _DRAWN if any(name in entry for entry in log_history)]
        if not names:
            raise ValueError(
                f"log_history has {len(log_history)} entries, none with isotropy figures such as "
                "isoscore_star; train with IsotropyTrainer (penalty=None for plain training), "
                "with logging_steps at most the number of training steps"
            )
        entries = [entry for entry in log_history if not entry.keys().isdisjoint(names)]
        self.steps = np.array([entry["step"] for entry in entries])
        self.figures = {
            name: np.array([entry.get(name, np.nan) for entry in entries]) for name in names
        }

    @classmethod
    def from_trainer(cls, trainer: Any, *, ax: Any = None) -> Self:
        """Plot the log of an IsotropyTrainer that was trained, with `ax` as for :meth:`plot`."""
        return cls(trainer.state.log_history).plot(ax=ax)

    @classmethod
    def from_checkpoint(cls, folder: str | os.PathLike[str], *, ax: Any = None) -> Self:
        """Plot the log in a ``checkpoint-…`` folder of a trainer, with `ax` as for :meth:`plot`."""
        state = Path(folder).expanduser() / "trainer_state.json"
        return cls(json.loads(state.read_text("utf-8"))["log_history"]).plot(ax=ax)

    def _draw(self) -> None:
        self.lines_: dict[str, Any] = {}
        isotropy, losses = self.axes_
        for axes, labels in ((isotropy, _ISOTROPY), (losses, _LOSSES)):
            logged = [name for name in labels if name in self.figures]
            for name, dashes in zip(logged, DASHES, strict=False):
                [self.lines_[name]] = axes.plot(self.steps, self.figures[name], linestyle=dashes)
            if logged:
                legend_beside(axes, {labels[name]: self.lines_[name] for name in logged})
        if "anisotropy1_centered" in self.lines_:
            self.lines_["ev1"] = self.lines_["anisotropy1_centered"]
        drawn = [self.figures[name] for name in _ISOTROPY if name in self.figures]
        highest = np.nanmax(drawn) if np.isfinite(drawn).any() else 1.0
        isotropy.set(ylim=(0, min(1.0, 1.2 * highest) or 1.0), ylabel="isotropy of a batch")
        losses.set(ylabel="loss (smaller is better)", xlabel="training step")
