"""AdapterSearchCV of texts: encoded once, trained together, with the scores of GridSearchCV."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from isoadapt import AdaptedEncoder, IStarAdapter, TransformerEncoder, _fit_rows, adapters
from isoadapt.encoders._opened import Opened
from isoadapt.model_selection import AdapterSearchCV
from tests.model_selection.searches import agree, assert_same_results
from tests.tiny_models import WORDS, make_model, make_tokenizer, save_pair

RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, 6)) for _ in range(36)]
Y = np.arange(36) % 3
pytestmark = pytest.mark.usefixtures("fixed_penalties")
QUICK = {"max_epochs": 1, "random_state": 0, "validation_fraction": None, "lr": 1e-2}
SEARCHED = [IStarAdapter(**QUICK), adapters.IsotropyLayer(**QUICK)]
OPTIONS = {"cv": KFold(2), "scoring": "neg_log_loss"}


@pytest.mark.parametrize("kind", [AdaptedEncoder, Pipeline])
def test_texts_are_encoded_once_and_candidates_trained_together(checkpoint, spy, kind):
    parts = {"encoder": TransformerEncoder(checkpoint), "adapter": IStarAdapter(**QUICK)}
    model = AdaptedEncoder(**parts) if kind is AdaptedEncoder else Pipeline([*parts.items()])
    grid = {"adapter__lam": [-5, 5]}
    passes = spy(TransformerEncoder, "transform", lambda _, X: len(X))
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
        (adapters.Whitening(), {"adapter": SEARCHED}),
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


@pytest.mark.filterwarnings("ignore:.*could not be trained together.*TeacherReadout cannot be")
@pytest.mark.filterwarnings("ignore:R² of the teacher's vectors")
@pytest.mark.parametrize("layers", [0, 1])
def test_with_a_teacher_each_text_is_encoded_once(layers, checkpoint, tmp_path, spy):
    """Of each fold, the states are aligned once, and the aligned vectors computed once."""
    teacher = save_pair(make_model().bert, make_tokenizer(), tmp_path)
    general = [" ".join(RNG.choice(WORDS, 7)) for _ in range(20)]
    parts = {"adapter": adapters.TeacherReadout(ridge=0.1), "teacher": teacher}
    model = AdaptedEncoder(checkpoint, general=general, teacher_layers=layers, **parts)
    grid = {"adapter__ridge": [0.01, 1.0]}
    options = {"cv": KFold(2), "scoring": lambda model, X, y: model.transform(X)[:, 0].sum()}
    theirs = GridSearchCV(model, grid, **options).fit(TEXTS, Y)
    aligned, calls = spy(_fit_rows, "align"), spy(Opened, "encode")
    ours = AdapterSearchCV(model, grid, n_jobs=2, **options).fit(TEXTS, Y)
    poolings = [(own.pooling.modes, own.pooling.aligned, texts) for own, texts in calls]
    encoded = Counter((*each, text) for *each, texts in poolings for text in texts.items())
    assert set(encoded.values()) == {1}
    assert len({key[:2] for key in encoded}) == (7 if layers else 2)  # of each fit two
    assert len(aligned) == 3 * layers  # of two folds, and of all texts
    assert_same_results(ours, theirs, 1e-5)
    assert np.ptp(theirs.cv_results_["mean_test_score"]) > 1e-4
    np.testing.assert_allclose(ours.transform(TEXTS), theirs.transform(TEXTS), atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*could not be trained together.*LogitPreservingWhitening")
@pytest.mark.parametrize("general", [np.array, pd.Series, None], ids=["array", "column", "none"])
def test_a_whitening_is_fitted_to_general_sentences_and_each_text_encoded_once(
    general, checkpoint, spy
):
    added = general and general([" ".join(RNG.choice(WORDS, 7)) for _ in range(20)])
    model = AdaptedEncoder(checkpoint, adapters.LogitPreservingWhitening(), general=added)
    options = {"cv": KFold(2), "scoring": lambda model, X, y: model.transform(X)[:, 0].sum()}
    theirs = GridSearchCV(model, {"adapter__strength": [0.5, 1.0]}, **options).fit(TEXTS, Y)
    calls = spy(Opened, "encode")
    ours = AdapterSearchCV(model, theirs.param_grid, **options).fit(TEXTS, Y)
    assert max(Counter(text for _, texts in calls for text in texts.items()).values()) == 1
    assert_same_results(ours, theirs, 1e-5)
    np.testing.assert_allclose(ours.transform(TEXTS), theirs.transform(TEXTS), atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*could not be trained together", "ignore:.*fits failed")
def test_general_sentences_that_an_adapter_does_not_take_fail_in_its_fits_alone(checkpoint):
    model = AdaptedEncoder(checkpoint, general=TEXTS[:20])
    grid = {"adapter": [adapters.Whitening(), adapters.LogitPreservingWhitening()]}
    options = {"cv": KFold(2), "scoring": lambda model, X, y: model.transform(X)[:, 0].sum()}
    searches = [
        kind(model, grid, refit=False, **options) for kind in (AdapterSearchCV, GridSearchCV)
    ]
    ours, theirs = (each.fit(TEXTS, Y).cv_results_["mean_test_score"] for each in searches)
    assert np.isnan(ours).tolist() == np.isnan(theirs).tolist() == [True, False]
