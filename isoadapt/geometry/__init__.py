"""Measures of isotropy as torch functions of point clouds, and mergeable moments of rows."""

from isoadapt.geometry._moments import Moments
from isoadapt.geometry._persistence import persistence_bars, persistent_entropy, select_bars

__all__ = ["Moments", "persistence_bars", "persistent_entropy", "select_bars"]
