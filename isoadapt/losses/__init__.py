"""Penalties over point clouds as torch modules, and the loss that joins them to a task's."""

from isoadapt.losses._cosreg import CosRegLoss
from isoadapt.losses._isoscore import IsoScoreLoss
from isoadapt.losses._joint import JointLoss
from isoadapt.losses._persistent_entropy import PersistentEntropyLoss
from isoadapt.losses._spectrum_control import SpectrumControlLoss

__all__ = [
    "CosRegLoss",
    "IsoScoreLoss",
    "JointLoss",
    "PersistentEntropyLoss",
    "SpectrumControlLoss",
]
