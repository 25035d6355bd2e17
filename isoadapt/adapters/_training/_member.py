"""What describes one fit of an adapter, and its result."""

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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Training settings, equal for all members that are trained together.

    The names are those of the parameters of a penalised adapter.
    """

    network: str
    head_training: str
    balance: str | None
    lr_schedule: str
    batch_size: int
    max_epochs: int
    patience: int | None
    device: torch.device
    classifies: bool  # whether the head is a classifier


@dataclass(frozen=True, eq=False, kw_only=True)
class Member:
    """One fit: its data, loss, learning rates and the choice of its epoch."""

    problem: Problem
    settings: Settings
    penalty: Penalty  # of the adapted rows
    weight: float  # of the penalty in the joint loss; the task loss has weight 1
    smoothing: float  # of the moving means that balance the two losses
    ridge: float  # weight, in the task loss, of the mean squared change of the head's outputs
    rates: Rates
    score: Score | None = None  # None: the epoch with the lowest penalty is the best
    least_error: float = 0.0  # lower bound of the standard error of the validation score
    # Makes the same member for another problem; the second fit, to all rows, needs it.
    for_problem: Callable[[Problem], "Member"] | None = None
    n_epochs: int | None = None  # number of epochs to run when there are no validation rows


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of training a member: its epochs with the fitted map and head, or the error."""

    run: Run
    ridge: float
    map: Affine | ResidualMLP | None = None
    head: LinearHead | None = None
    error: ValueError | None = None
