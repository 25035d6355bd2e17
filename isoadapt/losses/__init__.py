"""Penalties over point clouds as torch modules, and the loss that joins them to a task's."""

from isoadapt.losses._isoscore import IsoScoreLoss
from isoadapt.losses._joint import JointLoss

__all__ = ["IsoScoreLoss", "JointLoss"]
