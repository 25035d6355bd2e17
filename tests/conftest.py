"""Real data, where there is some, and a tiny checkpoint."""

import gc
import os
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import tests.pretended_cuda  # noqa: F401  # before the first backward pass
from isoadapt import adapted
from isoadapt.adapters import _heads
from isoadapt.encoders import release
from tests.tiny_models import save_model

# Random examples may take any time: other processes decide how long a draw or a call lasts.
slow = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("few", max_examples=25, **slow)
settings.load_profile("few")


def pytest_unconfigure() -> None:
    """Exempt all objects from the garbage collections at exit, which take seconds here."""
    gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with real embeddings, models and data, from ISOADAPT_SHARED."""
    default = Path(__file__).parents[2] / "shared"
    folder = Path(os.environ.get("ISOADAPT_SHARED", default))
    if not (folder / "embeddings").is_dir() or not (folder / "models").is_dir():
        pytest.skip(f"no real data: ISOADAPT_SHARED (now {folder}) names no such folder")
    return folder


@contextmanager
def _fixed_penalty():
    fit = _heads._fit_logistic
    with pytest.MonkeyPatch.context() as patch:
        # All rows in one fold: the others lack a class, so that C is not searched.
        patch.setattr(_heads, "_fit_logistic", lambda *rows: fit(*rows[:3], 0 * rows[3]))
        yield


@pytest.fixture
def fixed_penalty(request):
    """Fit logistic heads with the C their search starts from, but in tests of sample_weight."""
    with nullcontext() if "sample_weight" in request.node.name else _fixed_penalty():
        yield


@pytest.fixture(scope="module")
def fixed_penalties():
    """Fit all logistic heads of a module with the C their search starts from, which is fast."""
    with _fixed_penalty():
        yield


@pytest.fixture(scope="session", autouse=True)
def few_general_sentences():
    """Add fewer general sentences to the fits of readouts, whatever their texts are."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("POOLED", "ALIGNED"):
            n, share = getattr(adapted, name)
            patch.setattr(adapted, name, (n // 5, share))
        yield


@pytest.fixture
def spy(monkeypatch):
    """A function that makes another one note its calls: a list of `note` of their arguments."""

    def spy(owner, name, note=lambda *given: given):
        seen, called = [], getattr(owner, name)

        def noted(*given, **options):
            seen.append(note(*given))
            return called(*given, **options)

        monkeypatch.setattr(owner, name, noted)
        return seen

    return spy


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A folder with a tiny BERT classifier of three classes; do not write to it."""
    return save_model(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def shallow(tmp_path_factory):
    """A folder with a BERT of one layer, which is exported faster; do not write to it."""
    return save_model(tmp_path_factory.mktemp("shallow"), num_hidden_layers=1)


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """A folder with a tiny BERT without a head; do not write to it."""
    return save_model(tmp_path_factory.mktemp("bare"), kind="AutoModel")


@pytest.fixture
def empty_store():
    """No loaded models, of which other tests may leave some, before a test and after it."""
    release()
    yield
    release()


def pytest_collection_finish() -> None:
    """Leave what has been imported out of the garbage collections, each of which takes long."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
