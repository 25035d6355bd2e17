"""One fit of an adapter as plain data, and what comes of it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from isoadapt.adapters._maps import Affine, ResidualMLP
from isoadapt.adapters._training._optimizer import Rates
from isoadapt.adapters._training._penalty import Penalty
from isoadapt.adapters._training._problem import Problem
from isoadapt.adapters._training._selection import Run
from isoadapt.adapters._training._task_score import Score
from isoadapt.heads import LinearHead


@dataclass(frozen=True)
class Settings:
    """How a network is trained; members that are trained together have the same settings.

    The names are those of the parameters of a penalised adapter; `classifies` says whether the
    head is a classifier.
    """

    network: str
    head_training: str
    balance: str | None
    smoothing: float
    lr_schedule: str
    batch_size: int
    max_epochs: int
    patience: int | None
    device: torch.device
    classifies: bool


@dataclass(frozen=True, eq=False)
class Member:
    """One fit: what is trained, by which loss, at which rates, and how its epochs are scored.

    Attributes
    ----------
    problem : Problem
        Rows, split, head and coordinates.
    settings : Settings
        How the network is trained.
    penalty : Penalty
        Of the adapted rows.
    weight : float
        Of the penalty beside the task loss.
    ridge : float
        Weight, in the task loss, of the mean squared change of the head's outputs.
    rates : Rates
        Of AdamW.
    score : Score or None
        Of the validation rows; None takes the lowest penalty for the best epoch.
    least_error : float
        The standard error of the score is no smaller.
    for_problem : callable or None
        Makes the same member for another problem, for a second fit to all rows.
    n_epochs : int or None
        After how many epochs training stops where no rows choose that.
    """

    problem: Problem
    settings: Settings
    penalty: Penalty
    weight: float
    ridge: float
    rates: Rates
    score: Score | None = None
    least_error: float = 0.0
    for_problem: Callable[[Problem], "Member"] | None = None
    n_epochs: int | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What comes of a member: its epochs, the fitted map and head, or the error that ended it."""

    run: Run
    ridge: float
    map: Affine | ResidualMLP | None = None
    head: LinearHead | None = None
    error: ValueError | None = None
