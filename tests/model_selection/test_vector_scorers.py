"""Scorers of similarity, retrieval and neighbour overlap."""

import pickle

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from isoadapt import TransformerEncoder, Whitening
from isoadapt.metrics import neighbour_overlap, retrieval_report, similarity_correlation
from isoadapt.model_selection import (
    make_overlap_scorer,
    make_retrieval_scorer,
    make_similarity_scorer,
)
from tests.tiny_models import TEXTS, save_model

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 6)) * [20, 3, 2, 1, 1, 1] + 4
B = X + rng.normal(size=X.shape) * np.linspace(0.1, 3, 120)[:, None]
SCORES = np.linspace(5, 0, 120)
WHITENING = Whitening(strength=0.7).fit(X)


def test_each_is_the_metric_of_the_transformed_rows():
    Z, transformed_B = WHITENING.transform(X), WHITENING.transform(B)
    similarity = make_similarity_scorer(X, B, SCORES)
    assert similarity(WHITENING) == similarity_correlation(Z, transformed_B, SCORES)
    for measure in ("mrr", "recall", "ndcg"):
        scorer = make_retrieval_scorer(B, X, range(120), measure=measure, k=3)
        report = retrieval_report(transformed_B, Z, range(120), k=3)
        assert scorer(WHITENING) == getattr(report, measure)
    assert make_overlap_scorer(k=4)(WHITENING, X) == neighbour_overlap(X, Z, k=4)


def test_in_a_search_over_several():
    scoring = {
        "similarity": make_similarity_scorer(X, B, SCORES),
        "mrr": make_retrieval_scorer(B, X, range(120)),
        "overlap": make_overlap_scorer(k=3),
    }
    grid = {"strength": [0.0, 1.0]}
    search = GridSearchCV(Whitening(), grid, scoring=scoring, refit="similarity", cv=2).fit(X)
    results = search.cv_results_
    assert search.best_index_ == np.argmax(results["mean_test_similarity"])
    assert results["mean_test_overlap"][0] > results["mean_test_overlap"][1]
    assert np.isfinite(results["mean_test_mrr"]).all()


def test_texts_are_transformed_by_a_pipeline(tmp_path):
    folder = save_model(tmp_path / "model")
    pipe = make_pipeline(TransformerEncoder(folder), Whitening(shrinkage=0.5)).fit(TEXTS)
    texts = list(dict.fromkeys(TEXTS))
    assert make_retrieval_scorer(texts, texts, range(len(texts)), k=1)(pipe) > 0.9


@pytest.mark.parametrize(
    "scorer",
    [
        make_similarity_scorer(X, B, SCORES),
        make_retrieval_scorer(B, X, list(range(120))),
        make_overlap_scorer(),
    ],
    ids=repr,
)
def test_pickles(scorer):
    assert pickle.loads(pickle.dumps(scorer))(WHITENING, X) == scorer(WHITENING, X)


def test_an_unknown_measure_is_refused():
    with pytest.raises(ValueError, match="measure='map' must be one of 'mrr', 'recall', 'ndcg'"):
        make_retrieval_scorer(X, X, range(120), measure="map")
