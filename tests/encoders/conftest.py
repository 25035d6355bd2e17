"""Fixtures of the encoder tests."""

import pytest

from isoadapt.encoders import _transformer
from tests.tiny_models import make_model, make_tokenizer


@pytest.fixture
def loads(spy, empty_store):
    """The folders loaded from, one entry for each load."""
    return spy(_transformer, "load_backbone", lambda folder, *_: folder)


@pytest.fixture
def live():
    """A tiny live BERT classifier with its tokenizer."""
    return make_model(), make_tokenizer()
