"""Plot of the isotropy of embeddings over a fine-tuning run."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from isoadapt.report._axes import DASHES, legend_beside, panels, plain

_ISOTROPY = {
    "isoscore_star": "IsoScore*\n(greater is more isotropic)",
    "anisotropy1": "anisotropy₁\n(smaller is more isotropic)",
    "anisotropy1_centered": "anisotropy₁, centred (EV1)\n(smaller is more isotropic)",
}
_LOSSES = ("task_loss", "penalty")  # prefixes: several penalties are named penalty_1, penalty_2, …


class AnisotropyProfile:
    """Plot of isotropy and losses over the steps of a fine-tuning run.

    Create it with :meth:`from_trainer`, :meth:`from_log_history` or :meth:`from_checkpoint`, which
    also draw it.

    Parameters
    ----------
    steps : array-like of shape (n_logs,)
        Training steps at which values were logged.
    figures : mapping of str to array-like of shape (n_logs,)
        Logged values by name; NaN where a step has none. The names are ``isoscore_star``,
        ``anisotropy1``, ``anisotropy1_centered``, ``ev1``, ``task_loss`` and ``penalty`` (with
        several penalties ``penalty_1``, ``penalty_2``, …). All of them are optional.

    Attributes
    ----------
    figure_ : matplotlib Figure
        The figure.
    axes_ : ndarray of matplotlib Axes
        Panel of the isotropy, and panel of the losses if there is one.
    lines_ : dict of str to matplotlib Line2D
        The curve of each name. EV1 is the anisotropy₁ of centred points, so ``ev1`` and
        ``anisotropy1_centered`` share one curve.

    Raises
    ------
    ValueError
        If a name does not have one value for each step.

    Examples
    --------
    >>> from isoadapt.report import AnisotropyProfile
    >>> log = [{"step": 1, "isoscore_star": 0.2}, {"step": 2, "isoscore_star": 0.3}]
    >>> display = AnisotropyProfile.from_log_history(log)  # doctest: +SKIP
    >>> display.figure_.savefig("profile.png")  # doctest: +SKIP
    """

    def __init__(self, steps: ArrayLike, figures: Mapping[str, ArrayLike]) -> None:
        self.steps = np.asarray(steps)
        self.figures = {name: np.asarray(values, float) for name, values in figures.items()}
        for name, values in self.figures.items():
            if values.shape != self.steps.shape:
                raise ValueError(
                    f"figures[{name!r}] has shape {values.shape}, but steps has shape "
                    f"{self.steps.shape}; pass one value for each step, NaN where there is none"
                )

    @classmethod
    def from_trainer(cls, trainer: Any, *, ax: Any = None) -> Self:
        """Plot what a trainer has logged so far.

        Parameters
        ----------
        trainer : IsotropyTrainer
            Trainer that has been trained.
        ax : matplotlib Axes or two of them, default=None
            Axes to draw on, as for :meth:`plot`.

        Returns
        -------
        AnisotropyProfile
            The display.

        Raises
        ------
        ValueError
            If the log holds nothing to plot.
        """
        return cls.from_log_history(trainer.state.log_history, ax=ax)

    @classmethod
    def from_checkpoint(cls, folder: str | os.PathLike[str], *, ax: Any = None) -> Self:
        """Plot what a trainer had logged when it wrote a checkpoint.

        Parameters
        ----------
        folder : str or path-like
            One of the trainer's ``checkpoint-…`` folders.
        ax : matplotlib Axes or two of them, default=None
            Axes to draw on, as for :meth:`plot`.

        Returns
        -------
        AnisotropyProfile
            The display.

        Raises
        ------
        FileNotFoundError
            If the folder holds no ``trainer_state.json``.
        ValueError
            If the log holds nothing to plot.
        """
        path = Path(folder).expanduser() / "trainer_state.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"folder={str(folder)!r} holds no {path.name}; pass a checkpoint-… folder of the "
                "trainer's output_dir"
            )
        return cls.from_log_history(json.loads(path.read_text("utf-8"))["log_history"], ax=ax)

    @classmethod
    def from_log_history(cls, log_history: Sequence[Mapping[str, Any]], *, ax: Any = None) -> Self:
        """Plot a log.

        Parameters
        ----------
        log_history : sequence of mapping
            ``trainer.state.log_history`` of an :class:`~isoadapt.finetune.IsotropyTrainer`. Entries
            without isotropy or losses, such as those of evaluations, are ignored.
        ax : matplotlib Axes or two of them, default=None
            Axes to draw on, as for :meth:`plot`.

        Returns
        -------
        AnisotropyProfile
            The display.

        Raises
        ------
        ValueError
            If the log holds nothing to plot.
        """
        names = dict.fromkeys(name for entry in log_history for name in entry if _is_drawn(name))
        if not names:
            raise ValueError(
                f"log_history has {len(log_history)} entries, none with isotropy figures such as "
                "isoscore_star; train with IsotropyTrainer (penalty=None for plain training), "
                "with logging_steps at most the number of training steps"
            )
        entries = [entry for entry in log_history if not names.keys().isdisjoint(entry)]
        figures = {name: [entry.get(name, np.nan) for entry in entries] for name in names}
        return cls([entry["step"] for entry in entries], figures).plot(ax=ax)

    def plot(self, *, ax: Any = None) -> Self:
        """Draw the plot.

        Parameters
        ----------
        ax : matplotlib Axes or two of them, default=None
            Axes to draw on, the first for the isotropy, the second for the losses. On a single one
            only the isotropy is drawn. None makes a new figure with pyplot.

        Returns
        -------
        AnisotropyProfile
            The display itself.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If `ax` holds more than two Axes, or other objects.
        """
        names = ["isotropy"] if ax is not None and np.size(ax) == 1 else ["isotropy", "losses"]
        self.axes_ = panels(ax, "AnisotropyProfile", names, (8.5, 6), rows=True)
        self.figure_ = self.axes_[0].figure
        self.lines_: dict[str, Any] = {}
        self._draw(self.axes_[0], _ISOTROPY)
        self.axes_[0].set(ylim=(0, self._top()), ylabel="isotropy of a batch")
        if "anisotropy1_centered" in self.lines_:
            self.lines_["ev1"] = self.lines_["anisotropy1_centered"]
        if len(self.axes_) == 2:
            self._draw(self.axes_[1], {name: name.replace("_", " ") for name in self._losses()})
            self.axes_[1].set_ylabel("loss (smaller is better)")
        self.axes_[-1].set_xlabel("training step")
        for axes in self.axes_:
            plain(axes)
        return self

    def _top(self) -> float:
        """Upper end of the isotropy axis: above all curves, at most 1."""
        values = [self.figures[name] for name in _ISOTROPY if name in self.figures]
        highest = np.nanmax(values) if np.isfinite(values).any() else 1.0
        return min(1.0, 1.2 * float(highest)) or 1.0

    def _losses(self) -> list[str]:
        return [name for name in self.figures if name.startswith(_LOSSES)]

    def _draw(self, axes: Any, labels: dict[str, str]) -> None:
        """Draw the curves of those names in `labels` that were logged."""
        logged = [name for name in labels if name in self.figures]
        for name, dashes in zip(logged, itertools.cycle(DASHES), strict=False):
            [self.lines_[name]] = axes.plot(
                self.steps, self.figures[name], label=labels[name], linestyle=dashes
            )
        if logged:
            legend_beside(axes, {labels[name]: self.lines_[name] for name in logged})


def _is_drawn(name: str) -> bool:
    return name in _ISOTROPY or name == "ev1" or name.startswith(_LOSSES)
