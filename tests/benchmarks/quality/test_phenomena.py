import numpy as np
import pytest

from benchmarks.quality import _phenomena
from benchmarks.quality._phenomena import phenomenon_task, training_texts, unseen_texts


def test_no_unseen_sentence_was_trained_on():
    seen, labels = training_texts()
    texts, phenomena, acceptable = unseen_texts()
    assert len(seen) == len(labels) == 3000
    assert not set(seen) & set(texts)
    assert sorted(set(phenomena)) == sorted(set(labels))
    assert len(set(labels)) == 12
    assert 0.45 < acceptable.mean() < 0.55
    assert len(set(texts)) == len(texts) == 340 * 12


@pytest.mark.parametrize("task", _phenomena.TASKS)
def test_tasks_hold_the_rows_of_their_classes(monkeypatch, task):
    vectors = np.zeros((len(unseen_texts()[0]), 4), np.float32)
    monkeypatch.setattr(_phenomena, "unseen_vectors", lambda: vectors)
    n_classes = int(task.rpartition("-")[2])
    name, X, y = phenomenon_task(task)
    assert name.endswith(f", {n_classes} classes")
    assert len(np.unique(y)) == n_classes
    assert 1000 < len(X) == len(y) <= 2000
    if task == _phenomena.CROSSED:
        assert len({label.rpartition(",")[0] for label in y}) == 6
