"""What isotropy is: torch functions on point clouds."""

from isoadapt.geometry._moments import Moments

__all__ = ["Moments"]
