"""Adapters on embeddings of fine-tuned models, and effects that the papers report against λ = 0.

For these effects, adapters are trained to the last epoch, because the choice of an epoch by the
task could hide them. Adapters are evaluated on rows that no model was fitted to. CoLA is left out,
because near-duplicates dominate TwoNN there.
"""

from functools import cache, partial

import numpy as np
import pytest

from isoadapt import LinearHead, adapters
from isoadapt.adapters import LogitPreservingWhitening, TopologicalEntropyAdapter
from isoadapt.metrics import anisotropy, cumulative_explained_variance, isoscore, two_nn

SLOW = pytest.mark.slow


class Task:
    """Head, training rows, and evaluation rows: the test set if there is one, else dev."""

    def __init__(self, folder, name):
        data = dict(np.load(folder / "embeddings" / f"{name}.npz"))
        split = "test" if "E_test" in data else "dev"
        self.head = LinearHead(data["W"], data["b"], [0, 1])
        self.X, self.y = data["E_train"], data["y_train"]
        self.X_eval, self.y_eval = data[f"E_{split}"].astype(float), data[f"y_{split}"]

    def adapted(self, adapter, **parameters):
        """Outputs of an adapter trained to its last epoch."""
        fitted = adapter(self.head, validation_fraction=None, random_state=0, **parameters)
        return fitted.fit(self.X, self.y).transform(self.X_eval)


@pytest.fixture(scope="module")
def load(shared):
    return cache(partial(Task, shared))


@pytest.mark.parametrize(
    "name", ["sst2_sentence", *(pytest.param(name, marks=SLOW) for name in ("mrpc", "cola", "rte"))]
)
class TestEveryTask:
    def test_closed_forms_repair_anisotropic_embeddings(self, load, name):
        task = load(name)
        X = task.X_eval
        assert isoscore(X, bias_corrected=True) < 0.00095
        adapter = LogitPreservingWhitening(head=task.head).fit(task.X)
        assert isoscore(adapter.transform(X), bias_corrected=True) >= 0.55
        np.testing.assert_array_equal(adapter.predict(X), task.head.predict(X))
        Z = adapters.IsoBN().fit(task.X).transform(X)
        before = cumulative_explained_variance(X, k=1)
        assert cumulative_explained_variance(Z, k=1) < before

    @SLOW
    def test_both_layers_repair_them_and_lose_at_most_a_standard_error(self, load, name):
        task = load(name)
        hits = task.head.predict(task.X_eval) == task.y_eval
        trained = adapters.IsotropyLayer(task.head, random_state=0)
        for layer, least in ((adapters.ExactIsotropyLayer(task.head), 0.55), (trained, 0.15)):
            layer.fit(task.X, task.y)
            assert isoscore(layer.transform(task.X_eval), bias_corrected=True) >= least
            error = hits.std() / np.sqrt(len(hits))
            assert layer.score(task.X_eval, task.y_eval) >= hits.mean() - error


@SLOW
@pytest.mark.parametrize("name", ["mrpc", "rte"])
class TestEffectsOfThePapers:
    def test_istar_changes_isoscore_and_dimension_by_the_sign_of_lam(self, load, name):
        low, control, high = (
            load(name).adapted(adapters.IStarAdapter, lam=lam, max_epochs=15)
            for lam in (-1.0, 0.0, 1.0)
        )
        assert isoscore(low) < isoscore(control) / 2 < isoscore(control) < isoscore(high) / 100
        assert two_nn(low) < two_nn(control) / 1.5 < two_nn(control) < two_nn(high) / 1.5

    def test_persistent_entropy_lowers_anisotropy_most_with_selected_bars(self, load, name):
        control = load(name).adapted(adapters.CosRegAdapter, lam=0.0)
        selected = load(name).adapted(TopologicalEntropyAdapter)
        everything = load(name).adapted(TopologicalEntropyAdapter, bars="all")
        shares = [anisotropy(Z, 1, center=True) for Z in (selected, everything, control)]
        assert shares == sorted(shares)
