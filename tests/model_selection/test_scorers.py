"""Isotropy and use of the vectors as `scoring`, and the choice of a candidate above a floor."""

import pickle
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from sklearn import config_context
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import check_scoring
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from isoadapt import (
    AdaptedEncoder,
    IsotropyLayer,
    LogitPreservingWhitening,
    TransformerEncoder,
    Whitening,
    metrics,
)
from isoadapt.model_selection import (
    AdapterSearchCV,
    BestAboveFloor,
    make_isotropy_scorer,
    make_overlap_scorer,
    make_retrieval_scorer,
    make_similarity_scorer,
)
from tests.tiny_models import PAIRS, TEXTS

RISING = ["isoscore", "isoscore_star", "effective_rank", "two_nn", "partition_isotropy"]
FALLING = [
    "partition_dispersion",
    "cumulative_explained_variance",
    "anisotropy",
    "mean_cosine_similarity",
    "hubness",
]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 5)) * [8.0, 2.0, 1.0, 0.5, 0.2] + 3
    return X, (X @ [0.2, -1.0, 0.5, 0.0, 1.0] + rng.normal(size=240) > 0).astype(int)


def middling(X):
    """An oracle that is none of the package's metrics."""
    return np.median(np.abs(X))


# The scorer.


def test_every_scalar_metric_has_a_scorer():
    of_several_inputs = {"neighbour_overlap", "retrieval_report", "similarity_correlation"}
    reports = {"isotropy_report", "IsotropyReport", "HubnessReport", "RetrievalReport"}
    scalars = set(metrics.__all__) - of_several_inputs - reports
    assert scalars == {*RISING, *FALLING}


@pytest.mark.parametrize("name", RISING + FALLING)
def test_score_is_the_metric_of_the_transformed_rows_and_more_is_better(name, data):
    X, _ = data
    whitening = Whitening(strength=0.5).fit(X[:120])
    expected = getattr(metrics, name)(whitening.transform(X[120:]))
    expected = expected.skewness if name == "hubness" else expected
    sign = 1 if name in RISING else -1
    assert make_isotropy_scorer(name)(whitening, X[120:]) == sign * expected
    assert make_isotropy_scorer(getattr(metrics, name))(whitening, X[120:]) == sign * expected


def test_parameters_go_to_the_metric_and_the_sign_may_be_set(data):
    X, y = data
    whitening = Whitening(strength=0.5).fit(X)
    Z = whitening.transform(X)
    scorer = make_isotropy_scorer("isoscore", bias_corrected=True)
    assert scorer(whitening, X, y) == metrics.isoscore(Z, bias_corrected=True)
    scorer = make_isotropy_scorer("anisotropy", k=1, center=True)
    assert scorer(whitening, X) == -metrics.anisotropy(Z, k=1, center=True)
    scorer = make_isotropy_scorer("anisotropy", greater_is_better=True)
    assert scorer(whitening, X) == metrics.anisotropy(Z)


def test_any_callable_serves_as_metric(data):
    X, _ = data
    whitening = Whitening().fit(X)
    expected = middling(whitening.transform(X))
    assert make_isotropy_scorer(middling)(whitening, X) == expected
    assert make_isotropy_scorer(middling, greater_is_better=False)(whitening, X) == -expected
    of_tensors = make_isotropy_scorer(lambda Z, power: torch.tensor(Z).pow(power).mean(), power=2)
    score = of_tensors(whitening, X)
    assert type(score) is float
    assert score == pytest.approx((whitening.transform(X) ** 2).mean())


def test_pipelines_are_scored_by_the_last_that_transforms(data):
    X, y = data
    scorer = make_isotropy_scorer()
    adapter = make_pipeline(PCA(4), IsotropyLayer(max_epochs=1, random_state=0)).fit(X, y)
    assert scorer(adapter, X, y) == metrics.isoscore(adapter.transform(X))
    classifier = make_pipeline(PCA(4), Whitening(strength=0.5), LogisticRegression()).fit(X, y)
    assert scorer(classifier, X, y) == metrics.isoscore(classifier[:-1].transform(X))
    assert scorer(make_pipeline(Whitening(strength=0.0), None).fit(X), X) == pytest.approx(
        metrics.isoscore(X)
    )


def test_texts(checkpoint):
    texts = [f"{first} {second}" for first, second in PAIRS] + TEXTS
    labels = [0, 1] * 8
    scorer = make_isotropy_scorer(bias_corrected=True)
    encoder = TransformerEncoder(checkpoint)
    for estimator in (
        make_pipeline(encoder, Whitening(shrinkage=0.1)),
        AdaptedEncoder(checkpoint, Whitening(shrinkage=0.1)),
    ):
        estimator.fit(texts)
        expected = metrics.isoscore(estimator.transform(texts), bias_corrected=True)
        assert scorer(estimator, texts) == expected
    classifier = make_pipeline(encoder, LogisticRegression()).fit(texts, labels)
    expected = metrics.isoscore(encoder.transform(texts), bias_corrected=True)
    assert scorer(classifier, texts, labels) == expected


@pytest.mark.parametrize(
    "estimator", [LogisticRegression(), Pipeline([("only", LogisticRegression())])]
)
def test_an_estimator_that_transforms_nothing_is_refused(estimator, data):
    X, y = data
    with pytest.raises(TypeError, match=f"{type(estimator).__name__} has no transform.*Pipeline"):
        make_isotropy_scorer()(estimator.fit(X, y), X, y)


def test_what_is_refused_names_what_is_admissible():
    with pytest.raises(ValueError, match=r"metric='isocore' is unknown.*'isoscore', .*callable"):
        make_isotropy_scorer("isocore")
    with pytest.raises(TypeError, match=r"metric=3 \(int\) is not a metric: .*'isoscore'"):
        make_isotropy_scorer(3)
    with pytest.raises(TypeError, match="isoscore does not take k: it takes bias_corrected"):
        make_isotropy_scorer("isoscore", k=1)
    with pytest.raises(TypeError, match="effective_rank does not take X, k: it takes no param"):
        make_isotropy_scorer("effective_rank", k=1, X=2)


@pytest.mark.parametrize(
    ("scorer", "text"),
    [
        (make_isotropy_scorer(), "make_isotropy_scorer('isoscore')"),
        (
            make_isotropy_scorer("anisotropy", k=1, center=True),
            "make_isotropy_scorer('anisotropy', k=1, center=True)",
        ),
        (
            make_isotropy_scorer("two_nn", greater_is_better=False),
            "make_isotropy_scorer('two_nn', greater_is_better=False)",
        ),
        (make_isotropy_scorer(middling), "make_isotropy_scorer(middling)"),
        (make_isotropy_scorer(partial(middling)), "make_isotropy_scorer(functools.partial("),
    ],
)
def test_repr_is_the_call(scorer, text):
    assert repr(scorer).startswith(text)


def test_pickles_and_clones_score_the_same(data):
    X, _ = data
    whitening = Whitening(strength=0.5).fit(X)
    scorer = make_isotropy_scorer("anisotropy", k=2)
    for copied in (pickle.loads(pickle.dumps(scorer)), clone(scorer, safe=False)):
        assert copied(whitening, X) == scorer(whitening, X)
        assert repr(copied) == repr(scorer)
    assert check_scoring(whitening, scorer) is scorer


# In scikit-learn's hands.


def test_cross_validate_scores_each_fold(data):
    X, y = data
    adapter = LogitPreservingWhitening("logistic", strength=0.7)
    scoring = {
        "accuracy": "accuracy",
        "isoscore": make_isotropy_scorer("isoscore", bias_corrected=True),
        "ev1": make_isotropy_scorer("cumulative_explained_variance", k=1),
    }
    folds = KFold(3)
    found = cross_validate(adapter, X, y, scoring=scoring, cv=folds)
    for number, (train, test) in enumerate(folds.split(X)):
        Z = clone(adapter).fit(X[train], y[train]).transform(X[test])
        score = metrics.isoscore(Z, bias_corrected=True)
        assert found["test_isoscore"][number] == pytest.approx(score, rel=1e-9)
        variance = metrics.cumulative_explained_variance(Z, k=1)
        assert found["test_ev1"][number] == pytest.approx(-variance, rel=1e-9)


@pytest.mark.parametrize("routing", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_search_with_and_without_metadata_routing(routing, several, data):
    X, _ = data
    scorer = make_isotropy_scorer()
    with config_context(enable_metadata_routing=routing):
        search = GridSearchCV(
            Whitening(),
            {"strength": [0.0, 0.5, 1.0]},
            scoring={"isoscore": scorer} if several else scorer,
            refit="isoscore" if several else True,
        ).fit(X)
        assert search.best_params_ == {"strength": 1.0}
        assert search.score(X) == metrics.isoscore(search.transform(X))


@pytest.mark.parametrize("several", [False, True])
def test_sample_weight_reaches_the_fit_alone(several, data):
    X, _ = data
    scorer = make_isotropy_scorer()
    weights = np.random.default_rng(0).uniform(0.1, 1, len(X))
    search = GridSearchCV(
        Whitening(),
        {"strength": [1.0]},
        scoring={"isoscore": scorer} if several else scorer,
        refit=False,
        cv=KFold(2),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The scoring .* does not support sample_weight")
        search.fit(X, sample_weight=weights)
    expected = [
        metrics.isoscore(Whitening().fit(X[train], sample_weight=weights[train]).transform(X[test]))
        for train, test in KFold(2).split(X)
    ]
    column = "mean_test_isoscore" if several else "mean_test_score"
    assert search.cv_results_[column] == pytest.approx(np.mean(expected))


def test_folds_too_small_become_the_error_score():
    X = np.random.default_rng(0).normal(size=(12, 3))
    scorer = make_isotropy_scorer(bias_corrected=True)
    with pytest.warns(UserWarning, match="Scoring failed"):
        scores = cross_validate(Whitening(), X, scoring=scorer, cv=4)["test_score"]
    assert np.isnan(scores).all()
    with pytest.raises(ValueError, match="minimum of 4"):
        cross_validate(Whitening(), X, scoring=scorer, cv=4, error_score="raise")
    constant = FunctionTransformer(np.zeros_like)
    with pytest.raises(ValueError, match="X is constant"):
        cross_validate(constant, X, scoring=make_isotropy_scorer(), cv=2, error_score="raise")


# The choice.


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


@given(
    st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=8).filter(
        lambda pairs: any(task == task and isotropy == isotropy for task, isotropy in pairs)
    ),
    st.sampled_from([-1.0, 0.25, 0.5, 0.9, 2.0]),
)
def test_choice_follows_its_definition(pairs, floor):
    task, isotropy = map(list, zip(*pairs, strict=True))
    choose = BestAboveFloor("accuracy", "isoscore", floor=floor)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no candidate reaches", UserWarning)
        found = choose(results(accuracy=task, isoscore=isotropy))
    assert type(found) is int
    assert found == brute_force(task, isotropy, floor)


def test_below_the_floor_the_most_isotropic_is_chosen_with_a_warning():
    scores = results(accuracy=[0.9, 0.8, 0.7], isoscore=[0.1, 0.3, 0.2])
    with pytest.warns(UserWarning, match=r"floor=0.5 of 'isoscore'.*most isotropic.*0.3;.*widen"):
        assert BestAboveFloor("accuracy", "isoscore", floor=0.5)(scores) == 1


def test_scores_that_are_not_there_are_named():
    scores = results(accuracy=[0.9], isoscore=[0.1])
    with pytest.raises(ValueError, match="no score 'f1', only 'accuracy', 'isoscore'"):
        BestAboveFloor("f1", "isoscore", floor=0.5)(scores)
    with pytest.raises(ValueError, match="no score 'ev1', only 'accuracy', 'isoscore'"):
        BestAboveFloor("accuracy", "ev1", floor=0.5)(scores)
    scores = results(accuracy=[0.9, np.nan], isoscore=[np.nan, 0.1])
    with pytest.raises(ValueError, match=r"no candidate has both .*error_score='raise'"):
        BestAboveFloor("accuracy", "isoscore", floor=0.5)(scores)


@pytest.mark.parametrize("floor", [np.nan, np.inf, "0.5", None])
def test_a_floor_is_a_finite_number(floor):
    with pytest.raises(ValueError, match=r"floor=.* must be a finite number"):
        BestAboveFloor("accuracy", "isoscore", floor=floor)


@pytest.mark.usefixtures("fixed_penalty")
@pytest.mark.parametrize("search", [GridSearchCV, AdapterSearchCV])
def test_search_refits_the_chosen_candidate(search, data):
    X, y = data
    pipeline = make_pipeline(PCA(4), IsotropyLayer(max_epochs=3, random_state=0))
    search = search(
        pipeline,
        {"isotropylayer__alpha": [0.05, 0.5, 1.0], "isotropylayer__lr": [1e-3, 1e-1]},
        scoring={"accuracy": "accuracy", "isoscore": make_isotropy_scorer()},
        refit=BestAboveFloor("accuracy", "isoscore", floor=0.1),
        cv=3,
    )
    search = clone(search).fit(X, y)
    found = search.cv_results_
    isotropy = found["mean_test_isoscore"]
    assert isotropy.min() < 0.1 < isotropy.max()
    assert search.best_index_ == brute_force(found["mean_test_accuracy"], isotropy, 0.1)
    expected = clone(pipeline).set_params(**search.best_params_).fit(X, y)
    np.testing.assert_array_equal(search.transform(X), expected.transform(X))
    again = pickle.loads(pickle.dumps(search))
    assert again.refit == BestAboveFloor("accuracy", "isoscore", floor=0.1)
    np.testing.assert_array_equal(again.predict(X), search.predict(X))


# Similarity, search and neighbours.

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 6)) * [20, 3, 2, 1, 1, 1] + 4
B = X + rng.normal(size=X.shape) * np.linspace(0.1, 3, 120)[:, None]
SCORES = np.linspace(5, 0, 120)
WHITENING = Whitening(strength=0.7).fit(X)


def test_each_is_the_metric_of_the_transformed_rows():
    Z, transformed_B = WHITENING.transform(X), WHITENING.transform(B)
    similarity = make_similarity_scorer(X, B, SCORES)
    assert similarity(WHITENING) == metrics.similarity_correlation(Z, transformed_B, SCORES)
    for measure in ("mrr", "recall", "ndcg"):
        scorer = make_retrieval_scorer(B, X, range(120), measure=measure, k=3)
        report = metrics.retrieval_report(transformed_B, Z, range(120), k=3)
        assert scorer(WHITENING) == getattr(report, measure)
    assert make_overlap_scorer(k=4)(WHITENING, X) == metrics.neighbour_overlap(X, Z, k=4)


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


def test_texts_are_transformed_by_a_pipeline(checkpoint):
    pipe = make_pipeline(TransformerEncoder(checkpoint), Whitening(shrinkage=0.5)).fit(TEXTS)
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
def test_scorers_of_vectors_are_pickled(scorer):
    assert pickle.loads(pickle.dumps(scorer))(WHITENING, X) == scorer(WHITENING, X)


def test_an_unknown_measure_is_refused():
    with pytest.raises(ValueError, match="measure='map' must be one of 'mrr', 'recall', 'ndcg'"):
        make_retrieval_scorer(X, X, range(120), measure="map")
