"""AdapterSearchCV of texts: encoded once, trained together, GridSearchCV's scores."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from isoadapt import AdaptedEncoder, IsotropyLayer, IStarAdapter, TransformerEncoder, Whitening
from isoadapt.model_selection import AdapterSearchCV
from tests.model_selection.searches import agree, assert_same_results, both
from tests.tiny_models import WORDS

RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, 6)) for _ in range(60)]
Y = np.arange(60) % 3
pytestmark = pytest.mark.usefixtures("fixed_penalties")
QUICK = {"max_epochs": 2, "random_state": 0, "validation_fraction": None, "lr": 1e-2}


@pytest.fixture
def passes(monkeypatch):
    """Numbers of texts in each pass of the encoder."""
    transform, calls = TransformerEncoder.transform, []
    noted = lambda self, X: (calls.append(len(X)), transform(self, X))[1]  # noqa: E731
    monkeypatch.setattr(TransformerEncoder, "transform", noted)
    return calls


@pytest.mark.parametrize("kind", [AdaptedEncoder, Pipeline])
def test_texts_are_encoded_once_and_candidates_trained_together(checkpoint, passes, kind):
    parts = {"encoder": TransformerEncoder(checkpoint), "adapter": IStarAdapter(**QUICK)}
    model = AdaptedEncoder(**parts) if kind is AdaptedEncoder else Pipeline([*parts.items()])
    grid = {"adapter__lam": [-5, 5], "adapter__zeta": [0.2, 0.8]}
    ours = AdapterSearchCV(model, grid, cv=KFold(3), scoring="neg_log_loss").fit(TEXTS, Y)
    assert passes == [60]
    assert ours.unbatched_ == {}
    theirs = GridSearchCV(model, grid, cv=KFold(3), scoring="neg_log_loss").fit(TEXTS, Y)
    assert_same_results(ours, theirs, 1e-5)
    assert np.ptp(theirs.cv_results_["mean_test_score"]) > 1e-4
    best = clone(model).set_params(**ours.best_params_).fit(TEXTS, Y)
    assert type(ours.best_estimator_) is kind
    assert ours.best_estimator_.get_params().keys() == best.get_params().keys()
    np.testing.assert_allclose(ours.transform(TEXTS), best.transform(TEXTS), rtol=1e-5)
    np.testing.assert_array_equal(ours.predict(TEXTS), best.predict(TEXTS))


@pytest.mark.parametrize(
    ("adapter", "grid"),
    [
        (None, {"adapter__random_state": [0]}),
        (Whitening(), {"adapter": [IStarAdapter(**QUICK), IsotropyLayer(**QUICK)]}),
        (IStarAdapter(**QUICK), {"encoder__pooling": ["mean", "cls"], "adapter__lam": [1]}),
        (IStarAdapter(**QUICK), {"adapter__head": [None, "logistic"]}),
    ],
    ids=["default", "adapters", "encoder", "head"],
)
def test_whatever_is_searched(checkpoint, adapter, grid):
    model = AdaptedEncoder(checkpoint, adapter)
    if adapter is None:
        model.set_params(**{f"adapter__{name}": value for name, value in QUICK.items()})
    ours, theirs = agree(model, grid, TEXTS, Y, cv=KFold(2), atol=1e-5)
    assert type(ours.best_estimator_.pipeline_["adapter"]) is type(
        theirs.best_estimator_.pipeline_["adapter"]
    )


def test_any_other_step_in_the_encoders_place_is_refused(checkpoint):
    pipe = make_pipeline(TransformerEncoder(checkpoint), IStarAdapter(**QUICK))
    with pytest.raises(ValueError, match=r"transformerencoder=.* in place of an encoder"):
        AdapterSearchCV(pipe, {"transformerencoder": [FunctionTransformer()]}).fit(TEXTS, Y)


def test_the_checkpoints_head_is_used_if_it_knows_the_labels(checkpoint):
    model = AdaptedEncoder(checkpoint, IStarAdapter(**QUICK))
    grid = {"adapter__lam": [1, 2]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, theirs = both(model, grid, TEXTS, Y, cv=KFold(3))
    np.testing.assert_array_equal(
        ours.best_estimator_.head_.coef_, theirs.best_estimator_.head_.coef_
    )
    with pytest.warns(UserWarning, match="labels unknown") as caught:
        ours = AdapterSearchCV(model, grid, cv=KFold(3)).fit(TEXTS, Y + 5)
    assert len([each for each in caught if "labels unknown" in str(each.message)]) == 1
    assert [each.filename for each in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = GridSearchCV(model, grid, cv=KFold(3)).fit(TEXTS, Y + 5)
    assert_same_results(ours, theirs, 1e-5)
    assert ours.best_estimator_.classes_.tolist() == [5, 6, 7]


def test_adapters_without_a_head_of_their_own_are_compared_by_the_checkpoints(checkpoint):
    model = make_pipeline(AdaptedEncoder(checkpoint))
    grid = {"adaptedencoder__adapter": [IStarAdapter(**QUICK), Whitening()]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # texts are encoded in each fold
        assert_same_results(*both(model, grid, TEXTS, Y, cv=KFold(2)), 1e-5)


def test_weights_reach_the_adapter(checkpoint):
    model = AdaptedEncoder(checkpoint, IStarAdapter(**QUICK))
    weights = {"sample_weight": 1 + np.arange(60) % 2}
    options = {"scoring": "neg_log_loss", "cv": KFold(2), "atol": 1e-5}
    ours, theirs = agree(model, {"adapter__lam": [1, 2]}, TEXTS, Y, weights, **options)
    np.testing.assert_allclose(ours.transform(TEXTS), theirs.transform(TEXTS), rtol=1e-5)


class Doubled(AdaptedEncoder):
    """Has a transform of its own."""

    def transform(self, X):
        return 2 * super().transform(X)


def test_a_class_with_methods_of_its_own_is_fitted_whole(checkpoint):
    model, grid = Doubled(checkpoint, IStarAdapter(**QUICK)), {"adapter__lam": [1]}
    with pytest.warns(UserWarning, match="AdaptedEncoder"):
        ours, _ = agree(model, grid, TEXTS, Y, cv=KFold(2), alone=None, atol=1e-5)
    assert type(ours.best_estimator_) is Doubled


def test_resumed_from_a_cache(checkpoint, tmp_path):
    model = AdaptedEncoder(checkpoint, IStarAdapter(**QUICK))
    searches = [
        AdapterSearchCV(model, {"adapter__lam": [1, 2]}, cv=3, cache=cache)
        for cache in (tmp_path, tmp_path, None)
    ]
    results = [search.fit(TEXTS, Y).cv_results_ for search in searches]
    np.testing.assert_array_equal(results[0]["mean_test_score"], results[2]["mean_test_score"])
    assert results[1]["mean_fit_time"].tolist() == results[0]["mean_fit_time"].tolist()
    default = AdapterSearchCV(AdaptedEncoder(checkpoint), {"adapter__lr": [1e-3]}, cache=tmp_path)
    with pytest.raises(ValueError, match="adapter__random_state=None"):
        default.fit(TEXTS, Y)
