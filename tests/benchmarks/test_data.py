import numpy as np

from benchmarks import _data
from benchmarks._data import load_unseen, narrow_cone
from isoadapt.metrics import cumulative_explained_variance, isoscore, mean_cosine_similarity


def test_narrow_cone_is_narrow_and_learnable():
    data = narrow_cone(400, 32, seed=0)
    assert (data.X_train.shape, data.X_test.shape) == ((400, 32), (50, 32))
    assert isoscore(data.X_train) < 0.05
    assert cumulative_explained_variance(data.X_train, k=1) > 0.8
    assert mean_cosine_similarity(data.X_train) > 0.5
    assert data.head.score(data.X_train, data.y_train) > 0.8


def test_unseen_rows_are_those_of_all_splits_but_train_and_its_copies(monkeypatch, tmp_path):
    monkeypatch.setattr(_data, "shared_folder", lambda: tmp_path)
    (tmp_path / "embeddings").mkdir()
    E = np.random.default_rng(0).normal(size=(18, 3)).astype(np.float32)
    E[10] = E[7]
    arrays = {"E_train": E[:9], "E_dev": E[9:13], "E_test": E[13:]}
    labels = {"y_train": np.arange(9), "y_dev": np.arange(9, 13), "y_test": np.arange(13, 18)}
    np.savez(tmp_path / "embeddings" / "tiny.npz", **arrays, **labels)
    name, X, y = load_unseen("tiny")
    assert name == "tiny dev + test"
    np.testing.assert_array_equal(y, [9, *range(11, 18)])
    np.testing.assert_array_equal(X, E[y])
