"""Isotropy and use of the vectors as `scoring`, and the choice of a candidate above a floor."""

import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline

from isoadapt import IsotropyLayer, Whitening, metrics
from isoadapt.model_selection import (
    AdapterSearchCV,
    BestAboveFloor,
    make_isotropy_scorer,
    make_overlap_scorer,
    make_retrieval_scorer,
    make_similarity_scorer,
)
from tests.refusals import refusals

RISING = ["isoscore", "isoscore_star", "effective_rank", "two_nn", "partition_isotropy"]
FALLING = ["partition_dispersion", "cumulative_explained_variance", "anisotropy"]
FALLING += ["mean_cosine_similarity", "hubness"]
rng = np.random.default_rng(0)
X = rng.normal(size=(120, 5)) * [8.0, 2.0, 1.0, 0.5, 0.2] + 3
Y = (X @ [0.2, -1.0, 0.5, 0.0, 1.0] + rng.normal(size=120) > 0).astype(int)
B = X + rng.normal(size=X.shape) * np.linspace(0.1, 3, 120)[:, None]
SIMILARITIES = np.linspace(5, 0, 120)
WHITENING = Whitening(strength=0.5).fit(X[:60])
Z = WHITENING.transform(X)
NOT_SCORED = {"mean_test_a": np.array([0.9, np.nan]), "mean_test_isoscore": np.array([np.nan, 0.1])}


def middling(X):
    """An oracle that is none of the package's metrics."""
    return np.median(np.abs(X))


class TestIsotropyScorer:
    @pytest.mark.parametrize("name", RISING + FALLING)
    def test_it_is_the_metric_of_the_transformed_rows_and_more_is_better(self, name):
        expected = getattr(metrics, name)(Z)
        expected = expected.skewness if name == "hubness" else expected
        sign = 1 if name in RISING else -1
        for metric in (name, getattr(metrics, name)):
            assert make_isotropy_scorer(metric)(WHITENING, X) == sign * expected

    def test_parameters_go_to_the_metric_and_any_callable_serves_as_one(self):
        rising = make_isotropy_scorer("anisotropy", greater_is_better=True, k=1, center=True)
        assert rising(WHITENING, X, Y) == metrics.anisotropy(Z, k=1, center=True)
        assert make_isotropy_scorer(middling)(WHITENING, X) == middling(Z)
        assert make_isotropy_scorer(middling, greater_is_better=False)(WHITENING, X) == -middling(Z)

    def test_pipelines_are_scored_by_the_last_that_transforms(self):
        scorer = make_isotropy_scorer()
        classifier = make_pipeline(PCA(4), Whitening(), LogisticRegression()).fit(X, Y)
        assert scorer(classifier, X, Y) == metrics.isoscore(classifier[:-1].transform(X))
        with pytest.raises(TypeError, match="has no transform"):
            scorer(LogisticRegression().fit(X, Y), X, Y)


test_wrong_parameters = refusals(
    (lambda: make_isotropy_scorer("isocore"), "metric='isocore'"),
    (lambda: make_isotropy_scorer("isoscore", k=1), "unexpected keyword argument 'k'"),
    (lambda: make_retrieval_scorer(X, X, range(120), measure="map"), "measure='map'"),
    (lambda: BestAboveFloor("accuracy", "isoscore", floor=np.nan), "floor"),
    (lambda: BestAboveFloor("f1", "isoscore", floor=0.5)(NOT_SCORED), "'f1'"),
    (lambda: BestAboveFloor("a", "isoscore", floor=0.5)(NOT_SCORED), "no candidate has both"),
    errors=(TypeError, ValueError),
)


def test_similarity_search_and_overlap_are_the_metrics_of_the_transformed_rows():
    of_b = WHITENING.transform(B)
    similarity = make_similarity_scorer(X, B, SIMILARITIES)
    assert similarity(WHITENING) == metrics.similarity_correlation(Z, of_b, SIMILARITIES)
    for measure in ("mrr", "recall", "ndcg"):
        scorer = make_retrieval_scorer(B, X, range(120), measure=measure, k=3, metric="euclidean")
        report = metrics.retrieval_report(of_b, Z, range(120), k=3, metric="euclidean")
        assert scorer(WHITENING) == getattr(report, measure)
    overlap = make_overlap_scorer(k=4, metric="euclidean")
    assert overlap(WHITENING, X) == metrics.neighbour_overlap(X, Z, k=4, metric="euclidean")


def test_searches_of_scikit_learn_score_each_fold_and_pass_weights_to_the_fit_alone():
    weights = rng.uniform(0.1, 1, len(X))
    scoring = {
        "isoscore": make_isotropy_scorer(),
        "similarity": make_similarity_scorer(X, B, SIMILARITIES),
        "mrr": make_retrieval_scorer(B, X, range(120)),
        "overlap": make_overlap_scorer(k=3),
    }
    options = {"scoring": scoring, "refit": "isoscore", "cv": KFold(2)}
    search = GridSearchCV(Whitening(), {"strength": [0.0, 0.7]}, **options)
    search = pickle.loads(pickle.dumps(search))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The scoring .* does not support sample_weight")
        search.fit(X, sample_weight=weights)
    assert search.best_params_ == {"strength": 0.7}
    assert search.score(X) == metrics.isoscore(search.transform(X))
    assert all(np.isfinite(own).all() for k, own in search.cv_results_.items() if "mean" in k)
    for number, (train, test) in enumerate(KFold(2).split(X)):
        fitted = Whitening(strength=0.7).fit(X[train], sample_weight=weights[train])
        found = search.cv_results_[f"split{number}_test_isoscore"][1]
        assert found == pytest.approx(metrics.isoscore(fitted.transform(X[test])))


# --- the choice of a candidate --------------------------------------------------------------------


def results(**scores):
    return {f"mean_test_{name}": np.asarray(values) for name, values in scores.items()}


def brute_force(task, isotropy, floor):
    """Read the definition candidate by candidate."""
    usable = [i for i in range(len(task)) if task[i] == task[i] and isotropy[i] == isotropy[i]]
    reaching = [i for i in usable if isotropy[i] >= floor]
    orders = (task, isotropy) if reaching else (isotropy, task)
    left = reaching or usable
    for scores in orders:
        most = max(scores[i] for i in left)
        left = [i for i in left if scores[i] == most]
    return left[0]


SCORES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, float("nan")])


class TestBestAboveFloor:
    @settings(max_examples=60, derandomize=True)
    @given(
        st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=8).filter(
            lambda pairs: any(task == task and isotropy == isotropy for task, isotropy in pairs)
        ),
        st.sampled_from([-1.0, 0.25, 0.5, 0.9, 2.0]),
    )
    def test_choice_follows_its_definition(self, pairs, floor):
        task, isotropy = map(list, zip(*pairs, strict=True))
        choose = BestAboveFloor("accuracy", "isoscore", floor=floor)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "no candidate reaches", UserWarning)
            found = choose(results(accuracy=task, isoscore=isotropy))
        assert type(found) is int
        assert found == brute_force(task, isotropy, floor)

    def test_below_the_floor_the_most_isotropic_is_chosen_with_a_warning(self):
        scores = results(accuracy=[0.9, 0.8, 0.7], isoscore=[0.1, 0.3, 0.2])
        with pytest.warns(UserWarning, match=r"floor=0.5 of 'isoscore'.*0.3"):
            assert BestAboveFloor("accuracy", "isoscore", floor=0.5)(scores) == 1

    @pytest.mark.usefixtures("fixed_penalties")
    def test_search_refits_the_chosen_candidate(self):
        pipeline = make_pipeline(PCA(4), IsotropyLayer(max_epochs=2, random_state=0))
        search = AdapterSearchCV(
            pipeline,
            {"isotropylayer__alpha": [0.05, 1.0], "isotropylayer__lr": [1e-3, 1e-1]},
            scoring={"accuracy": "accuracy", "isoscore": make_isotropy_scorer()},
            refit=BestAboveFloor("accuracy", "isoscore", floor=0.1),
            cv=2,
        )
        search.fit(X, Y)
        found = search.cv_results_
        isotropy = found["mean_test_isoscore"]
        assert isotropy.min() < 0.1 < isotropy.max()
        assert search.best_index_ == brute_force(found["mean_test_accuracy"], isotropy, 0.1)
        expected = clone(pipeline).set_params(**search.best_params_).fit(X, Y)
        np.testing.assert_array_equal(search.transform(X), expected.transform(X))
