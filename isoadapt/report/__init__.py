"""Plots of isotropy and comparisons, and a report as one HTML file. They need the extra ``plot``.

Each display is created by one of its ``from_…`` methods, which draw but do not show it. ``plot``
draws it again, on new Axes or on Axes of a figure of one's own. The drawn objects are attributes of
the display.
"""

from isoadapt.report._anisotropy_profile import AnisotropyProfile
from isoadapt.report._comparison import ComparisonDisplay
from isoadapt.report._embedding_map import EmbeddingMapDisplay
from isoadapt.report._html_report import write_report
from isoadapt.report._search_front import SearchFrontDisplay
from isoadapt.report._spectrum import SpectrumDisplay

__all__ = [
    "AnisotropyProfile",
    "ComparisonDisplay",
    "EmbeddingMapDisplay",
    "SearchFrontDisplay",
    "SpectrumDisplay",
    "write_report",
]
