"""Accelerate collects garbage at each start of a training, which takes long if much is imported."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _imports_are_no_garbage() -> None:
    gc.freeze()
