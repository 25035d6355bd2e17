"""Where the real data lies that some tests use."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with real embeddings, models and data, from ISOADAPT_SHARED."""
    default = Path(__file__).parents[2] / "shared"
    folder = Path(os.environ.get("ISOADAPT_SHARED", default))
    if not (folder / "embeddings").is_dir():
        pytest.skip(f"no real embeddings: ISOADAPT_SHARED (now {folder}) names no such folder")
    return folder
