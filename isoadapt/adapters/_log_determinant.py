"""Adapter whose features are drawn towards independence by a log-determinant."""

from dataclasses import dataclass

import torch

from isoadapt.adapters._engine._task import Penalty, Problem
from isoadapt.adapters._penalised import WeightedPenaltyAdapter
from isoadapt.losses import LogDeterminantLoss


@dataclass(eq=False, repr=False, kw_only=True)
class LogDeterminantAdapter(WeightedPenaltyAdapter):
    """Adapter trained on the task loss minus lam times the log-determinant of the correlations.

    Parameters
    ----------
    <parameters>
    lam : float, default=1.0
        Weight λ of the penalty.

    Attributes
    ----------
    <attributes>
    """

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        return Penalty(LogDeterminantLoss(), shared=True)
