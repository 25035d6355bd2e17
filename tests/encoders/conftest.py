"""Fixtures of the encoder tests."""

import pytest

from isoadapt.encoders import _transformer, release
from tests.tiny_models import make_model, make_tokenizer, save_model


@pytest.fixture
def empty_store():
    """No loaded models; other tests may find those of earlier ones."""
    release()
    yield
    release()


@pytest.fixture(scope="session")
def bare_checkpoint(tmp_path_factory):
    """A folder with a tiny BERT without a head. Do not write to it."""
    return save_model(tmp_path_factory.mktemp("bare"), kind="AutoModel")


@pytest.fixture
def loads(spy, empty_store):
    """The folders loaded from, one entry for each load."""
    return spy(_transformer, "load_backbone", lambda folder, *_: folder)


@pytest.fixture
def live():
    """A tiny live BERT classifier with its tokenizer."""
    return make_model(), make_tokenizer()
