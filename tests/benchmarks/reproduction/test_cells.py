"""Fine-tuning cells: each run gives all its figures, adapters reuse the bases' embeddings."""

import math

import numpy as np
import pytest

from benchmarks._data import read_table
from benchmarks.reproduction import _training
from benchmarks.reproduction._adapters import ADAPTERS, adapter_cell
from benchmarks.reproduction._measuring import read
from benchmarks.reproduction._plan import PENALTIES
from benchmarks.reproduction._records import run_cell
from benchmarks.reproduction._training import BASE, HELD_OUT, Job, Recipe
from tests.tiny_models import WORDS, save_model

RECIPE = Recipe(epochs=2, lr=1e-3)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny BERT in place of MiniLM, with more dimensions than components are shown."""
    return save_model(tmp_path_factory.mktemp("model"), num_labels=2, hidden_size=24)


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch, model):
    """A small CoLA in place of the real one; a text is good if it has a cat."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "data" / "cola"
    folder.mkdir(parents=True)
    for split, n in (("train", 80), ("dev", 40)):
        texts = [" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(n)]
        lines = [f"{text}\t{int('cat' in text)}" for text in texts]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    monkeypatch.setenv("ISOADAPT_SHARED", str(tmp_path))
    monkeypatch.setattr(_training, "minilm_folder", lambda: model)
    monkeypatch.setattr(_training, "CACHE", tmp_path / "cache")


def job(condition=BASE, held_out=0.0):
    return Job("cola", 0, RECIPE, condition, held_out)


@pytest.mark.parametrize("condition", [BASE, *PENALTIES[1:3]], ids=lambda each: each.name)
def test_a_run_gives_every_figure_that_a_claim_needs(condition):
    figures = job(condition).run()
    shown = {"metric", "partition_isotropy", "last_mean_norm", "isoscore_star"}
    assert all(math.isfinite(figures[name]) for name in shown)
    assert math.isfinite(figures["batch_anisotropy1_centered"])
    assert len(figures["layers_isoscore_star"]) == 2


def test_a_choice_is_made_on_training_rows_that_were_held_out():
    assert job(held_out=HELD_OUT).run()["dev"]["rows"] == 16  # of 80


@pytest.mark.filterwarnings("ignore:.*different texts are fewer")
def test_a_pass_gives_the_library_s_embeddings_and_layers(model):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from isoadapt import TransformerEncoder
    from isoadapt.encoders import layer_report
    from isoadapt.metrics import isoscore

    texts = read_table("cola", "dev")[0]
    classes = AutoModelForSequenceClassification, AutoTokenizer
    live = tuple(each.from_pretrained(model) for each in classes)
    found = read(*live, texts, 64)
    expected = TransformerEncoder(live).transform(texts)
    np.testing.assert_allclose(found.embeddings, expected, atol=1e-5)
    theirs = layer_report(TransformerEncoder(live), texts)[1:].itertuples()
    for layer, own in zip(theirs, found.layers, strict=True):
        assert own.count == layer.n_tokens
        assert isoscore(own) == pytest.approx(layer.isoscore, rel=1e-5)


def test_adapters_reuse_the_embeddings_of_their_base(spy):
    runs = spy(_training, "fine_tune", lambda job, *_: job)
    base = job().run()
    cell = adapter_cell(ADAPTERS[0], job())
    found = run_cell(cell)["figures"]
    assert runs == [job()]
    assert found["isoscore"] == pytest.approx(base["isoscore"])
    job().file.unlink()
    assert run_cell(cell)["figures"]["metric"] == found["metric"]
    assert len(runs) == 2  # run again where the file is gone
