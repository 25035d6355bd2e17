import numpy as np

from benchmarks.quality import _phenomena
from benchmarks.quality._phenomena import phenomenon_task, training_texts, unseen_texts


def test_no_unseen_sentence_was_trained_on():
    seen, labels = training_texts()
    texts, phenomena = unseen_texts()
    assert len(seen) == len(labels) == 3000
    assert not set(seen) & set(texts)
    assert sorted(set(phenomena)) == sorted(set(labels))
    assert len(set(labels)) == 12
    assert len(set(texts)) == len(texts) == 340 * 12


def test_the_task_holds_rows_of_all_classes(monkeypatch):
    vectors = np.zeros((len(unseen_texts()[0]), 4), np.float32)
    monkeypatch.setattr(_phenomena, "unseen_vectors", lambda: vectors)
    _, X, y = phenomenon_task()
    assert len(np.unique(y)) == 12
    assert len(X) == len(y) == 2000
