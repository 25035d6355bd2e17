from benchmarks.quality._phenomena import training_texts, unseen_texts


def test_no_unseen_sentence_was_trained_on():
    seen, labels = training_texts()
    texts, phenomena = unseen_texts()
    assert len(seen) == len(labels) == 3000
    assert not set(seen) & set(texts)
    assert sorted(set(phenomena)) == sorted(set(labels))
    assert len(set(labels)) == 12
    assert len(set(texts)) == len(texts) == 340 * 12
