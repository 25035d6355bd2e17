"""A text pipeline in a grid search with everything at once, saved and loaded in a new process."""

import subprocess
import sys

import joblib
import numpy as np
import pytest
from sklearn import config_context
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import Pipeline

from isoadapt import IStarAdapter, TransformerEncoder
from tests.tiny_models import WORDS, save_model

LOADING = """
import sys, joblib, numpy as np
search = joblib.load(sys.argv[1])
texts = np.load(sys.argv[2])
np.savez(sys.argv[3], labels=search.predict(texts), logits=search.decision_function(texts))
"""


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A fitted search, its texts, and the weights and groups that were routed to it."""
    folder = tmp_path_factory.mktemp("card")
    encoder = TransformerEncoder(save_model(folder / "model"), cache=str(folder / "cache"))
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=6)) for _ in range(72)]
    y = np.array(["cat" in text or "dog" in text for text in texts]).astype(int)
    weights, groups = rng.integers(1, 4, size=72).astype(float), np.arange(72) // 3
    with config_context(enable_metadata_routing=True):
        adapter = IStarAdapter(max_epochs=2, random_state=0)
        adapter.set_fit_request(sample_weight=True, groups=True)
        adapter.set_score_request(sample_weight=True)
        pipe = Pipeline([("encoder", encoder), ("adapter", adapter)], memory=str(folder / "memory"))
        grid = {"adapter__lam": [-1.0, 1.0], "adapter__zeta": [0.2, 0.8]}
        search = GridSearchCV(pipe, grid, cv=GroupKFold(2), n_jobs=2)
        with joblib.parallel_config("threading"):  # processes would take seconds to start
            search.fit(texts, y, sample_weight=weights, groups=groups)
    return search, texts, y, weights, groups, folder


def test_every_candidate_is_scored_and_weights_and_groups_arrive(searched):
    search, texts, y, weights, groups, _ = searched
    scores = search.cv_results_["mean_test_score"]
    assert scores.shape == (4,)
    assert np.isfinite(scores).all()
    embeddings = search.best_estimator_["encoder"].transform(texts)
    params = {name.removeprefix("adapter__"): value for name, value in search.best_params_.items()}
    by_hand = IStarAdapter(max_epochs=2, random_state=0, **params)
    by_hand.fit(embeddings, y, sample_weight=weights, groups=groups)
    adapted = search.best_estimator_[-1].transform(embeddings)
    np.testing.assert_allclose(adapted, by_hand.transform(embeddings), atol=1e-6)
    unweighted = IStarAdapter(max_epochs=2, random_state=0, **params).fit(embeddings, y)
    assert np.abs(adapted - unweighted.transform(embeddings)).max() > 1e-4


def test_a_new_process_predicts_the_same(searched):
    search, texts, *_, folder = searched
    files = [folder / name for name in ("search.joblib", "texts.npy", "found.npz")]
    joblib.dump(search, files[0])
    np.save(files[1], np.array(texts))
    subprocess.run([sys.executable, "-c", LOADING, *map(str, files)], check=True)
    with np.load(files[2]) as found:
        np.testing.assert_array_equal(found["labels"], search.predict(texts))
        np.testing.assert_allclose(found["logits"], search.decision_function(texts), atol=1e-6)
