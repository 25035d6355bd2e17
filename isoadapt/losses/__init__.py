"""Isotropy penalties as torch modules, and the joint loss that adds one to a task loss."""

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
