"""AdapterSearchCV of texts: encoded once, trained together, with the scores of GridSearchCV."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from isoadapt import AdaptedEncoder, IsotropyLayer, IStarAdapter, TransformerEncoder, Whitening
from isoadapt.model_selection import AdapterSearchCV
from tests.model_selection.searches import agree, assert_same_results
from tests.tiny_models import WORDS

RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, 6)) for _ in range(36)]
Y = np.arange(36) % 3
pytestmark = pytest.mark.usefixtures("fixed_penalties")
QUICK = {"max_epochs": 1, "random_state": 0, "validation_fraction": None, "lr": 1e-2}
OPTIONS = {"cv": KFold(2), "scoring": "neg_log_loss"}


@pytest.mark.parametrize("kind", [AdaptedEncoder, Pipeline])
def test_texts_are_encoded_once_and_candidates_trained_together(checkpoint, monkeypatch, kind):
    transform, passes = TransformerEncoder.transform, []
    parts = {"encoder": TransformerEncoder(checkpoint), "adapter": IStarAdapter(**QUICK)}
    model = AdaptedEncoder(**parts) if kind is AdaptedEncoder else Pipeline([*parts.items()])
    grid = {"adapter__lam": [-5, 5]}
    with monkeypatch.context() as patch:
        noted = lambda self, X: (passes.append(len(X)), transform(self, X))[1]  # noqa: E731
        patch.setattr(TransformerEncoder, "transform", noted)
        ours = AdapterSearchCV(model, grid, **OPTIONS).fit(TEXTS, Y)
    assert passes == [36]
    assert ours.unbatched_ == {}
    theirs = GridSearchCV(model, grid, **OPTIONS, refit=False).fit(TEXTS, Y)
    assert_same_results(ours, theirs, 1e-5)
    assert np.ptp(theirs.cv_results_["mean_test_score"]) > 1e-4
    best = clone(model).set_params(**ours.best_params_).fit(TEXTS, Y)
    assert type(ours.best_estimator_) is kind
    assert ours.best_estimator_.get_params().keys() == best.get_params().keys()
    np.testing.assert_allclose(ours.transform(TEXTS), best.transform(TEXTS), rtol=1e-5)


@pytest.mark.parametrize(
    ("adapter", "grid"),
    [
        (None, {"adapter__random_state": [0]}),
        (Whitening(), {"adapter": [IStarAdapter(**QUICK), IsotropyLayer(**QUICK)]}),
        (IStarAdapter(**QUICK), {"encoder__pooling": ["mean", "cls"]}),
    ],
    ids=["default", "adapters", "encoder"],
)
def test_whatever_is_searched(checkpoint, adapter, grid):
    """The head is that of the checkpoint; weights reach the adapter."""
    model = AdaptedEncoder(checkpoint, adapter)
    if adapter is None:
        model.set_params(**{f"adapter__{name}": value for name, value in QUICK.items()})
    weights = {"sample_weight": 1 + np.arange(36) % 2}
    ours, theirs = agree(model, grid, TEXTS, Y, weights, cv=KFold(2), atol=1e-5)
    found, expected = (each.best_estimator_ for each in (ours, theirs))
    assert type(found.pipeline_["adapter"]) is type(expected.pipeline_["adapter"])
    np.testing.assert_allclose(found.transform(TEXTS), expected.transform(TEXTS), rtol=1e-4)


def centred(rows):
    return rows - rows.mean(0)


def test_what_may_mix_rows_stays_inside_the_folds(checkpoint):
    steps = TransformerEncoder(checkpoint), FunctionTransformer(centred), IStarAdapter(**QUICK)
    agree(make_pipeline(*steps), {"istaradapter__lam": [-1, 1]}, TEXTS, Y, **OPTIONS, atol=1e-4)
