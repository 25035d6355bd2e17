"""Adapters on embeddings of fine-tuned models."""

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from isoadapt import IsotropyLayer, LinearHead, LogitPreservingWhitening
from isoadapt.metrics import isoscore

TASKS = ["cola", "mrpc", "rte", "sst2_sentence"]


@pytest.fixture(scope="module")
def tasks(shared):
    return {task: dict(np.load(shared / "embeddings" / f"{task}.npz")) for task in TASKS}


def parts(data):
    """Head, training rows, and evaluation rows: the test set if there is one, else dev."""
    split = "test" if "E_test" in data else "dev"
    head = LinearHead(data["W"], data["b"], [0, 1])
    train = data["E_train"], data["y_train"]
    return head, train, (data[f"E_{split}"].astype(float), data[f"y_{split}"])


def standard_error(hits):
    """Bootstrap standard error of the accuracy."""
    draws = np.random.default_rng(0).integers(len(hits), size=(1000, len(hits)))
    return hits[draws].mean(axis=1).std()


@pytest.mark.parametrize("task", TASKS)
class TestRealEmbeddings:
    def test_embeddings_are_anisotropic(self, tasks, task):
        _, _, (X, _) = parts(tasks[task])
        assert isoscore(X, bias_corrected=True) < 0.00095

    def test_logit_preserving_whitening(self, tasks, task):
        head, (X, _), (X_eval, _) = parts(tasks[task])
        adapter = LogitPreservingWhitening(head=head).fit(X)
        assert isoscore(adapter.transform(X_eval), bias_corrected=True) >= 0.55
        np.testing.assert_array_equal(adapter.predict(X_eval), head.predict(X_eval))

    def test_exact_solver(self, tasks, task):
        head, (X, y), (X_eval, y_eval) = parts(tasks[task])
        layer = IsotropyLayer(head=head, solver="exact").fit(X, y)
        assert isoscore(layer.transform(X_eval), bias_corrected=True) >= 0.55
        hits = head.predict(X_eval) == y_eval
        assert layer.score(X_eval, y_eval) >= hits.mean() - standard_error(hits)

    @pytest.mark.slow
    def test_minibatch_over_seeds(self, tasks, task):
        head, (X, y), (X_eval, y_eval) = parts(tasks[task])
        hits = head.predict(X_eval) == y_eval
        layers = [IsotropyLayer(head=head, random_state=seed).fit(X, y) for seed in range(3)]
        for layer in layers:
            assert isoscore(layer.transform(X_eval), bias_corrected=True) >= 0.15
        mean = np.mean([layer.score(X_eval, y_eval) for layer in layers])
        assert mean >= hits.mean() - standard_error(hits)


@pytest.mark.parametrize("alpha", [1e-6, 0.5, 1.0])
def test_exact_solver_is_bounded_on_a_separable_subset(tasks, alpha):
    head, (X, y), (X_eval, y_eval) = parts(tasks["cola"])
    rows = np.random.default_rng(0).permutation(len(X))[:2000]
    layer = IsotropyLayer(head=head, solver="exact", alpha=alpha).fit(X[rows], y[rows])
    assert np.linalg.norm(head.coef_ @ layer.to_affine()[0]) < 1000  # 3e6 without the ridge
    assert matthews_corrcoef(y_eval, layer.predict(X_eval)) > 0.28
