"""Files that the commands read."""

import numpy as np
import pandas as pd
import pytest

from tests.cli.command_line import X, Y
from tests.tiny_models import WORDS


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with the same rows in every kind of file, and texts."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("X.npy", X)
    np.save("y.npy", Y)
    columns = {f"f{i}": X[:, i] for i in range(5)}
    pd.DataFrame(columns | {"label": Y, "id": "x"}).to_parquet("X.parquet")
    rows = [f"{' '.join(rng.choice(WORDS, size=6))}\t{i % 3}" for i in range(90)]
    (tmp_path / "texts.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return tmp_path


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A folder with tables of texts and three classes, train.tsv and dev.tsv."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    for name in ("train", "dev"):
        rows = [f"{' '.join(rng.choice(WORDS, size=6))}\t{rng.integers(0, 3)}" for _ in range(90)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return folder
