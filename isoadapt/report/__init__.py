"""Plots of measured isotropy. They need matplotlib, the extra ``plot``."""

from isoadapt.report._anisotropy_profile import AnisotropyProfile

__all__ = ["AnisotropyProfile"]
