"""Pictures of what was measured; they need the extra ``plot``."""

from isoadapt.report._anisotropy_profile import AnisotropyProfile

__all__ = ["AnisotropyProfile"]
