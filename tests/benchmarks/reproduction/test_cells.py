"""Fine-tuning cells: each run gives all its figures, adapters reuse the bases' embeddings."""

import math

import numpy as np
import pytest

from benchmarks._commit import commit
from benchmarks.reproduction import (
    _fitting,
    _measuring,
    _training,
    isotropy_layer,
    istar,
    persistent_entropy,
)
from benchmarks.reproduction._cells import run_cell
from benchmarks.reproduction._posthoc import post_hoc_cell, row_named
from benchmarks.reproduction._recipe import Recipe
from benchmarks.reproduction._training import BASE, Job, load_task
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
    monkeypatch.setattr(_fitting, "minilm_folder", lambda: model)
    monkeypatch.setattr(_training, "CACHE", tmp_path / "cache")


def job(condition=BASE):
    return Job("cola", 0, RECIPE, condition)


@pytest.mark.parametrize(
    "condition",
    [BASE, istar.UP, persistent_entropy.SELECTED],
    ids=lambda condition: condition.name,
)
def test_a_run_gives_every_figure_that_a_claim_needs(condition):
    figures = job(condition).run()
    shown = {"metric", "batch_anisotropy1_centered", "partition_isotropy", "last_mean_norm"}
    assert all(math.isfinite(figures[name]) for name in shown)
    on_tokens = condition == BASE or condition.where != "head_input"
    assert ("isoscore_star" in figures) == on_tokens


@pytest.mark.filterwarnings("ignore:.*different texts are fewer")
def test_both_passes_give_the_library_s_embeddings_and_layers(model):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from isoadapt import TransformerEncoder
    from isoadapt.encoders import layer_report
    from isoadapt.metrics import isoscore

    texts = load_task("cola").dev_texts
    classes = AutoModelForSequenceClassification, AutoTokenizer
    live = tuple(each.from_pretrained(model) for each in classes)
    embeddings, logits = _measuring.embed(*live, texts, 64)
    found = _measuring.read(*live, texts, 64)
    np.testing.assert_array_equal(embeddings, found.embeddings)
    np.testing.assert_array_equal(logits, found.outputs)
    np.testing.assert_allclose(embeddings, TransformerEncoder(live).transform(texts), atol=1e-5)
    theirs = layer_report(TransformerEncoder(live), texts)[1:]
    for layer, own in zip(theirs, found.layers, strict=True):
        assert own.count == layer.n_tokens
        assert isoscore(own) == pytest.approx(layer.isoscore, rel=1e-5)


def test_adapters_reuse_the_embeddings_of_their_base(monkeypatch):
    runs = []
    run = _training._run
    monkeypatch.setattr(_training, "_run", lambda given: runs.append(given) or run(given))
    base = job().run()
    cell = post_hoc_cell(row_named(isotropy_layer.BASE), job())
    assert runs == [job()]
    found = run_cell(cell)["figures"]
    assert runs == [job()]
    assert found["isoscore"] == pytest.approx(base["isoscore"])
    assert found["base_commit"] == commit()
    job().file.unlink()
    assert run_cell(cell)["figures"]["metric"] == found["metric"]
    assert len(runs) == 2  # run again where the file is gone
