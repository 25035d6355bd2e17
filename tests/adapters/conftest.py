"""Heads that are fitted quickly, for sweeps over many adapters."""

import pytest

from isoadapt.adapters import _heads


@pytest.fixture
def two_folds(monkeypatch, request):
    """Choose the penalty of named heads by fewer fits, but where weights must be frequencies."""
    if "sample_weight" not in request.node.name:
        monkeypatch.setattr(_heads, "_N_FOLDS", 2)
