"""AdapterSearchCV gives GridSearchCV's scores for steps and subclasses of the user's own."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch import nn

from isoadapt import CosRegAdapter, IStarAdapter, LinearHead, TransformerEncoder
from isoadapt.adapters._training._problem import Penalty
from tests.model_selection.searches import agree
from tests.tiny_models import WORDS

X, Y = make_classification(120, 6, n_informative=4, n_classes=3, shift=1.0, random_state=0)
HEAD = LinearHead.from_estimator(LogisticRegression(max_iter=1000).fit(X, Y))
pytestmark = pytest.mark.usefixtures("fixed_penalties")
QUICK = {"max_epochs": 2, "validation_fraction": None, "random_state": 0, "lr": 1e-2}


# What is transformed outside the folds


def by_median(X):
    """Rows by the sign of the median's distance: each row depends on the others."""
    return X - np.median(X, 0)


def minus_loss(estimator, X, y):
    return -np.square(estimator.predict_proba(X) - np.eye(3)[y]).sum(1).mean()


def test_a_step_that_mixes_rows_stays_inside_the_folds():
    steps = {"first": "passthrough", "step": FunctionTransformer(by_median)}
    pipe = Pipeline([*steps.items(), ("adapter", IStarAdapter(HEAD, **QUICK))])
    grid = {"adapter__lam": [-1, 1]}
    agree(pipe, grid, X, Y, cv=KFold(4), scoring=minus_loss, atol=1e-5)
    grid = {"first": ["passthrough", FunctionTransformer(by_median)]}
    agree(pipe, grid, X, Y, cv=KFold(2), scoring=minus_loss, atol=1e-5)


class Centred(TransformerEncoder):
    """An encoder whose vectors depend on the texts in their company."""

    def transform(self, X):
        vectors = super().transform(X)
        return vectors - vectors.mean(0)


def test_an_encoder_that_mixes_rows_stays_inside_the_folds(checkpoint):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 5)) for _ in range(40)]
    pipe = make_pipeline(Centred(str(checkpoint)), IStarAdapter(**QUICK))
    y, grid = np.arange(40) % 2, {"istaradapter__lam": [-1, 1]}
    agree(pipe, grid, texts, y, cv=KFold(2), scoring="neg_log_loss", atol=1e-4)


# Penalties of one's own


class Distance(nn.Module):
    """Mean squared distance of the points from a value."""

    def __init__(self, value):
        super().__init__()
        self.register_buffer("value", torch.tensor(float(value)))

    def forward(self, points):
        return (points - self.value).square().mean((-2, -1))


def distance(points, value):
    return (points - value).square().mean((-2, -1))


MADE = {
    "module with a buffer": lambda adapter: Distance(adapter.goal),
    "closure over the adapter": lambda adapter: lambda points: distance(points, adapter.goal),
    "partial": lambda adapter: partial(distance, value=adapter.goal),
}


@dataclass(eq=False, repr=False, kw_only=True)
class GoalAdapter(CosRegAdapter):
    """An adapter that draws the points to a goal.

    Parameters
    ----------
    goal : float, default=0.0
        The value.
    made : str, default="module with a buffer"
        How the loss is made.
    """

    _parameter_constraints: ClassVar = {
        **CosRegAdapter._parameter_constraints,
        "goal": [float, int],
        "made": [str],
    }
    _batchable_params: ClassVar = CosRegAdapter._batchable_params | {"goal"}

    goal: float = 0.0
    made: str = "module with a buffer"

    def _make_penalty(self, problem, device):
        return Penalty(MADE[self.made](self))


@pytest.mark.parametrize("made", MADE)
def test_penalties_that_cannot_be_joined_are_trained_one_at_a_time(made):
    adapter = GoalAdapter(HEAD, made=made, lam=3.0, **QUICK)
    grid = {"goal": [0.0, 3.0], "lr": [1e-2, 2e-2]}
    with pytest.warns(UserWarning, match=r"8 of 8 fits .*Penalty\.join"):
        _, theirs = agree(adapter, grid, X, Y, cv=2, scoring=minus_loss, atol=1e-6, alone=[8])
    assert np.ptp(theirs.cv_results_["mean_test_score"]) > 0.01


@pytest.mark.parametrize("made", ["module with a buffer", "partial"])
def test_equal_penalties_are_trained_together(made):
    adapter = GoalAdapter(HEAD, made=made, goal=1.0, **QUICK)
    agree(adapter, {"lam": [0.0, 3.0]}, X, Y, cv=2, scoring=minus_loss, atol=1e-5)
