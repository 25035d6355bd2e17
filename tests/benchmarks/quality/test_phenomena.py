import numpy as np
import pytest

from benchmarks.quality import _phenomena
from benchmarks.quality._phenomena import (
    TASKS,
    load_phenomena,
    phenomenon_task,
    training_texts,
    unseen_texts,
)
from tools.acceptability.corpus import draw_corpus


@pytest.fixture
def encoded(monkeypatch, tmp_path):
    """Embeddings that need no model, and how often they were made."""
    calls = []

    def embed(texts):
        calls.append(len(texts))
        return np.random.default_rng(0).normal(size=(len(texts), 4)).astype(np.float32)

    monkeypatch.setattr(_phenomena, "finetune_and_embed", embed)
    monkeypatch.setattr(_phenomena, "CACHE", tmp_path / "phenomena.npz")
    return calls


def test_no_unseen_sentence_was_trained_on():
    seen, labels = training_texts()
    texts, phenomena, acceptable = unseen_texts()
    assert len(seen) == len(labels) == 3000
    assert not set(seen) & set(texts)
    assert len(set(texts)) == len(texts)
    assert sorted(set(phenomena)) == sorted(set(labels))
    assert len(set(labels)) == 12
    assert 0.45 < acceptable.mean() < 0.55


def test_no_unseen_sentence_has_its_twin_beside_it():
    texts, *_ = unseen_texts()
    corpus = draw_corpus(2, 2 * 340 * 26, seed=1)
    pair = {text: row // 2 for row, text in enumerate(corpus.dev_texts)}
    assert len({pair[text] for text in texts}) == len(texts) == 340 * 12


@pytest.mark.parametrize(("task", "n_classes"), [("phenomenon-12", 12), ("phenomenon-3", 3)])
def test_tasks_hold_the_rows_of_their_classes(encoded, task, n_classes):
    rows = phenomenon_task(task)
    assert rows.name == f"phenomenon, {n_classes} classes"
    assert len(np.unique(rows.y)) == n_classes
    assert 1000 < len(rows.y) <= 2000
    assert len(rows.X) == len(rows.y)
    assert rows.sizes == (800,)


def test_hard_task_crosses_phenomenon_and_acceptability(encoded):
    rows = phenomenon_task("phenomenon-acceptability-12")
    plain = phenomenon_task("phenomenon-8")
    names = {label.rpartition(",")[0] for label in rows.y}
    assert len(np.unique(rows.y)) == 12
    assert len(names) == 6
    assert names < set(plain.y)


def test_embeddings_are_made_once_for_all_tasks(encoded):
    first = [phenomenon_task(task) for task in TASKS]
    assert len(encoded) == 1
    again = phenomenon_task(TASKS[0])
    np.testing.assert_array_equal(again.X, first[0].X)
    assert len(encoded) == 1


def test_embeddings_of_another_recipe_are_made_anew(encoded, monkeypatch):
    load_phenomena()
    monkeypatch.setitem(_phenomena.RECIPE, "epochs", 1)
    load_phenomena()
    assert len(encoded) == 2
