"""Accelerate collects garbage at each start of a training, which takes long if much is imported."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _imports_are_no_garbage() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()
