"""A folder with files of every kind that the commands read."""

import shutil

import numpy as np
import pandas as pd
import pytest

from tests.cli.command_line import X, Y, succeed
from tests.tiny_models import WORDS, make_model, make_tokenizer, save_pair

rng = np.random.default_rng(0)


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
    """A folder with tables of texts and three classes: train.tsv, dev.tsv and texts.tsv."""
    folder = tmp_path_factory.mktemp("tables")
    for name, n in {"train": 90, "dev": 90, "texts": 60}.items():
        rows = [f"{' '.join(rng.choice(WORDS, size=6))}\t{i % 3}" for i in range(n)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return folder


@pytest.fixture(scope="session")
def place(tables, checkpoint, tmp_path_factory):
    """The tables, matrices, a model, the encoder that it began as, and an adapter of the model."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(tables, folder, dirs_exist_ok=True)
    train, dev = (pd.read_table(folder / f"{name}.tsv")["sentence"] for name in ("train", "dev"))
    pairs = pd.DataFrame({"sentence1": train, "sentence2": dev, "label": np.arange(90) % 6})
    pairs.to_csv(folder / "pairs.tsv", sep="\t", index=False)
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", Y)
    columns = {f"f{i}": X[:, i] for i in range(5)}
    pd.DataFrame(columns | {"label": Y, "id": "x"}).to_parquet(folder / "X.parquet")
    shutil.copytree(checkpoint, folder / "my-model")
    save_pair(make_model().bert, make_tokenizer(), folder / "my-base")
    line = "fit whitening --on texts.tsv --model my-model --max-length 4 --out my-adapter"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        succeed(*line.split(), "--set", "shrinkage=0.1")
    return folder


@pytest.fixture
def files(place, tmp_path, monkeypatch):
    """An own working folder with links to all of `place`."""
    for path in place.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
