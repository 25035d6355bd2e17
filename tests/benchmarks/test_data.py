from benchmarks._data import narrow_cone
from isoadapt.metrics import cumulative_explained_variance, isoscore, mean_cosine_similarity


def test_narrow_cone_is_narrow_and_learnable():
    data = narrow_cone(400, 32, seed=0)
    assert (data.X_train.shape, data.X_test.shape) == ((400, 32), (50, 32))
    assert isoscore(data.X_train) < 0.05
    assert cumulative_explained_variance(data.X_train, k=1) > 0.8
    assert mean_cosine_similarity(data.X_train) > 0.5
    assert data.head.score(data.X_train, data.y_train) > 0.8
