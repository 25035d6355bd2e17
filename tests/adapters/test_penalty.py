"""PenaltyAdapter with user-defined penalties, such as the log-determinant."""

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

from isoadapt import CosRegAdapter, LinearHead, PenaltyAdapter
from isoadapt.losses import CosRegLoss
from tests.model_selection.searches import agree

X, Y = make_classification(200, 8, n_informative=4, random_state=0)
X = X * [9, 3, 1, 1, 1, 1, 0.5, 0.5]
HEAD = LinearHead.from_estimator(LogisticRegression().fit(X, Y))
QUICK = {"max_epochs": 2, "random_state": 0}
ALL_ROWS = {"validation_fraction": None, **QUICK}


def scatter_within(Z, labels):
    """Squared distance of the rows to the mean of their class."""
    return sum(Z[labels == k].var(0, correction=0).sum() for k in labels.unique()) / Z.numel()


class CosRegOfMembers(CosRegLoss):
    member_axis = True


def recording(name, recorded):
    """A penalty without effect that records one of its optional arguments."""
    return {
        "labels": lambda Z, labels: recorded.append(labels.clone()) or Z.sum() * 0,
        "prior_cov": lambda Z, prior_cov: recorded.append(prior_cov.clone()) or Z.sum() * 0,
    }[name]


def test_loss_of_the_library_gives_the_result_of_its_adapter():
    shared = {"coordinates": "raw", "ridge": 0.0, "lr_schedule": "constant", **QUICK}
    theirs = CosRegAdapter(HEAD, lam=2.0, **QUICK).fit(X, Y)
    for loss in (CosRegLoss(), CosRegOfMembers()):
        ours = PenaltyAdapter(loss, HEAD, lam=2.0, **shared).fit(X, Y)
        np.testing.assert_allclose(ours.map_.matrix, theirs.map_.matrix, rtol=1e-6)


def test_penalty_gets_the_classes_or_the_values_in_their_own_units():
    values = np.c_[1000 + 50 * X[:, 0], X[:, 1] - 4]
    for head, y in ((HEAD, Y), ("ridge", values)):
        recorded = []
        PenaltyAdapter(recording("labels", recorded), head, **ALL_ROWS).fit(X, y)
        epoch = np.concatenate(recorded[: len(recorded) // QUICK["max_epochs"]])
        assert epoch.dtype.kind == ("i" if head is HEAD else "f")
        expected = np.sort(y, axis=0)
        np.testing.assert_allclose(np.sort(epoch, axis=0), expected, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("network", ["linear", "mlp"])
def test_prior_cov_is_the_covariance_of_all_adapted_rows(network):
    recorded = []
    penalty = recording("prior_cov", recorded)
    adapter = PenaltyAdapter(penalty, HEAD, network=network, lr=1e-9, **ALL_ROWS).fit(X, Y)
    ratio = np.cov(adapter.transform(X).T) / recorded[-1].numpy()
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-2)


@pytest.mark.parametrize("penalty", [scatter_within, CosRegOfMembers()])
def test_adapter_search_agrees_with_grid_search(penalty):
    adapter = PenaltyAdapter(penalty, LogisticRegression(), **QUICK)
    agree(adapter, {"lam": [0.0, 5.0]}, X, Y, cv=2, atol=1e-6)


@pytest.mark.parametrize(
    ("penalty", "word"),
    [
        (lambda Z: Z.mean(1), "one number"),
        (lambda Z: 1.0, "one number"),
        (lambda Z: Z.detach().var(), "without a gradient"),
        (lambda Z, labels: Z[labels == 7].mean(), "must be finite"),
    ],
)
def test_invalid_return_values_are_refused(penalty, word):
    with pytest.raises(ValueError, match=f"penalty=.*{word}"):
        PenaltyAdapter(penalty, HEAD, **ALL_ROWS).fit(X, Y)
