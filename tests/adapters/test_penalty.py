"""PenaltyAdapter with user-defined penalties, such as the log-determinant."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

from isoadapt import CosRegAdapter, IsotropyLayer, PenaltyAdapter
from isoadapt.losses import CosRegLoss
from isoadapt.metrics import isoscore
from tests.model_selection.searches import agree

X, Y = make_classification(300, 8, n_informative=4, random_state=0)
X = X * [9, 3, 1, 1, 1, 1, 0.5, 0.5]
QUICK = {"max_epochs": 4, "random_state": 0}


class LogDeterminant(torch.nn.Module):
    """Distance of the covariance from a multiple of the identity: log tr(Σ)/d - log det(Σ)/d."""

    def forward(self, Z):
        cov = torch.cov(Z.mT) + 1e-6 * torch.eye(Z.shape[1])
        return cov.diagonal().mean().log() - cov.logdet() / len(cov)


def scatter_within(Z, labels):
    """Squared distance of the rows to the mean of their class."""
    return sum(Z[labels == k].var(0, correction=0).sum() for k in labels.unique()) / Z.numel()


class CosRegOfMembers(CosRegLoss):
    member_axis = True


def recording_penalty(recorded):
    def penalty(Z, prior_cov):
        recorded.append(prior_cov.clone())
        return Z.var()

    return penalty


def test_log_determinant_raises_isotropy_and_keeps_the_task():
    adapter = PenaltyAdapter(LogDeterminant(), lam=1.0, random_state=0).fit(X, Y)
    control = clone(adapter).set_params(lam=0.0).fit(X, Y)
    assert isoscore(adapter.transform(X)) > 0.5 > isoscore(control.transform(X))
    assert adapter.score(X, Y) >= control.score(X, Y) - 0.02


def test_loss_of_the_library_gives_the_result_of_its_adapter():
    shared = {"coordinates": "raw", "ridge": 0.0, "lr_schedule": "constant", **QUICK}
    theirs = CosRegAdapter(lam=2.0, **QUICK).fit(X, Y)
    for loss in (CosRegLoss(), CosRegOfMembers()):
        ours = PenaltyAdapter(loss, lam=2.0, **shared).fit(X, Y)
        np.testing.assert_allclose(ours.map_.matrix, theirs.map_.matrix, rtol=1e-6)


@pytest.mark.parametrize("head", ["logistic", "ridge"])
def test_penalty_gets_the_labels_of_the_batch(head):
    recorded = []

    def penalty(Z, labels):
        recorded.append((len(Z), tuple(labels.shape), labels.dtype.is_floating_point))
        return Z.sum() * 0

    PenaltyAdapter(penalty, head, batch_size=50, **QUICK).fit(X, Y)
    assert {(n == shape[0], len(shape), floating) for n, shape, floating in recorded} == {
        (True, 1, False) if head == "logistic" else (True, 2, True)
    }


def test_penalty_gets_the_target_values_in_their_own_units():
    values = np.c_[1000 + 50 * X[:, 0], X[:, 1] - 4]
    recorded = []

    def penalty(Z, labels):
        recorded.append(labels.numpy())
        return Z.sum() * 0

    PenaltyAdapter(penalty, "ridge", validation_fraction=None, **QUICK).fit(X, values)
    epoch = np.sort(np.concatenate(recorded[: len(recorded) // QUICK["max_epochs"]]), axis=0)
    np.testing.assert_allclose(epoch, np.sort(values, axis=0), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("network", ["linear", "mlp"])
def test_prior_cov_is_the_covariance_of_all_adapted_rows(network):
    recorded = []
    adapter = PenaltyAdapter(
        recording_penalty(recorded), network=network, validation_fraction=None, lr=1e-9, **QUICK
    ).fit(X, Y)
    ratio = np.cov(adapter.transform(X).T) / recorded[-1].numpy()
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-2)


@pytest.mark.parametrize("penalty", [LogDeterminant(), scatter_within, CosRegOfMembers()])
def test_adapter_search_agrees_with_grid_search(penalty):
    adapter = PenaltyAdapter(penalty, LogisticRegression(), **QUICK)
    agree(adapter, {"lam": [0.0, 1.0, 5.0]}, X, Y, cv=2, atol=1e-6)


@pytest.mark.parametrize(
    ("penalty", "message"),
    [
        (lambda Z: Z.mean(1), r"a tensor of shape \(64,\), but must return one number"),
        (lambda Z: Z.detach().var(), "returns a number without a gradient"),
        (lambda Z: Z.var() / 0, "is inf on a batch, but must be finite"),
        (lambda Z, labels: Z[labels == 7].mean(), "is nan on a batch, but must be finite"),
        (lambda Z: 1.0, r"returns 1\.0, but must return one number as a tensor of shape \(\)"),
    ],
)
def test_invalid_return_values_are_refused(penalty, message):
    with pytest.raises(ValueError, match=message):
        PenaltyAdapter(penalty, validation_fraction=None, batch_size=75, **QUICK).fit(
            X[:64], Y[:64]
        )


@pytest.mark.parametrize(
    "penalty", [lambda Z: Z.double().var(), lambda Z: Z.half().float().var(), torch.var]
)
def test_penalty_in_other_precisions_and_torch_functions(penalty):
    head = LogisticRegression()  # strong enough for gradients that are not all rounding
    expected = PenaltyAdapter(lambda Z: Z.var(), head, **QUICK).fit(X, Y)
    found = PenaltyAdapter(penalty, head, **QUICK).fit(X, Y)
    np.testing.assert_allclose(found.map_.matrix, expected.map_.matrix, rtol=0.05, atol=0.01)


def test_in_place_change_of_the_labels_does_not_change_the_task():
    def penalty(Z, labels):
        labels.zero_()
        return Z.sum() * 0

    losses = [
        PenaltyAdapter(each, **QUICK).fit(X, Y).history_[-1]["train_loss"]
        for each in (penalty, lambda Z: Z.sum() * 0)
    ]
    assert losses[0] == losses[1]


def test_parameters_are_those_of_the_other_penalised_adapters():
    own = PenaltyAdapter(scatter_within).get_params()
    others = IsotropyLayer().get_params().keys() - {"alpha", "bias_corrected", "solver"}
    assert own.keys() == others | {"penalty", "lam"}
