"""Fixtures of the tests of the speed benchmarks."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def frozen_objects() -> Iterator[None]:
    """Leave present objects out of the garbage collections before measurements, for speed."""
    gc.freeze()
    yield
    gc.unfreeze()
