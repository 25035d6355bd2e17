"""Adapters: maps of embeddings, fitted on matrices alone."""

from isoadapt.adapters._closed_form import LogitPreservingWhitening, Whitening
from isoadapt.adapters._isotropy_layer import IsotropyLayer

__all__ = ["IsotropyLayer", "LogitPreservingWhitening", "Whitening"]
