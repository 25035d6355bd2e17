"""Penalised adapters with ``sample_weight`` and ``groups``."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import Lars, LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, r2_score

from isoadapt import (
    CosRegAdapter,
    IsotropyLayer,
    IStarAdapter,
    LinearHead,
    SpectrumControlAdapter,
)
from isoadapt.adapters import Affine
from isoadapt.adapters._istar import _SampledShrinkage
from isoadapt.adapters._rows import Batches, Rows, distinct_rows, split_rows
from isoadapt.adapters._training._networks import LinearNetwork
from isoadapt.geometry import Moments
from isoadapt.losses import IsoScoreLoss

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 6)) * [4, 2, 1, 1, 0.5, 0.2] + 1
Y = (X[:, 1:4].sum(axis=1) + RNG.normal(size=120) > 3).astype(int)
VALUES = X[:, 1] - X[:, 2] + RNG.normal(size=120)
COUNTS = RNG.integers(0, 4, size=120)
WEIGHTS = RNG.uniform(0.5, 5, size=120)
HEAD = LinearHead.from_estimator(LogisticRegression().fit(X, Y))
READS_VALUES = LinearHead([[0.0, 0.8, -0.8, 0.1, 0.0, 0.0]], [0.1])
QUICK = {"max_epochs": 3, "batch_size": 16, "random_state": 0}

ADAPTERS = [
    IsotropyLayer(**QUICK),
    IsotropyLayer("ridge", solver="exact"),
    IStarAdapter(network="mlp", head_training="joint", **QUICK),
    CosRegAdapter(LogisticRegression(C=0.1), **QUICK),
    SpectrumControlAdapter(None, **QUICK),
]


def without_penalty(head, **parameters):
    """An adapter without a penalty, of which the single epoch changes almost nothing."""
    start = {"max_epochs": 1, "lr": 1e-12, "validation_fraction": None, "random_state": 0}
    return CosRegAdapter(head, lam=0.0, **{**start, **parameters})


class Recorder:
    """A scoring that records its arguments; the values of y identify the rows."""

    def __init__(self):
        self.calls = []

    def __call__(self, estimator, X, y, sample_weight=None):
        self.calls.append((y, sample_weight))
        return 0.0


class TestWeightsAreFrequencies:
    @pytest.mark.parametrize("adapter", ADAPTERS, ids=repr)
    def test_weights_equal_repeated_rows(self, adapter):
        order = np.random.default_rng(1).permutation(120)
        weighted = clone(adapter).fit(X[order], Y[order], sample_weight=COUNTS[order])
        repeated = clone(adapter).fit(X.repeat(COUNTS, axis=0), Y.repeat(COUNTS))
        np.testing.assert_allclose(weighted.transform(X), repeated.transform(X), rtol=1e-7)
        losses = [
            [epoch.get("train_loss", epoch.get("loss", 0.0)) for epoch in fitted.history_]
            for fitted in (weighted, repeated)
        ]
        np.testing.assert_allclose(*losses, rtol=1e-6)

    @pytest.mark.parametrize("adapter", ADAPTERS, ids=repr)
    def test_rows_of_weight_zero_are_ignored(self, adapter):
        kept = COUNTS > 0
        outlying = np.where(kept[:, None], X, 1e3)
        weighted = clone(adapter).fit(outlying, Y, sample_weight=kept)
        shorter = clone(adapter).fit(X[kept], Y[kept])
        np.testing.assert_array_equal(weighted.transform(X), shorter.transform(X))

    def test_weights_of_one_have_no_effect(self):
        fitted = [
            IsotropyLayer(**QUICK).fit(X, Y, sample_weight=weights).transform(X)
            for weights in (None, np.ones(120))
        ]
        np.testing.assert_array_equal(*fitted)

    def test_equal_rows_with_different_labels_or_groups_are_not_merged(self):
        rows = np.array([[1.0, 2.0], [1.0, 2.0], [-0.0, 3.0], [0.0, 3.0]], np.float32)
        merged = distinct_rows(rows, np.array([0, 1, 1, 1]), None, None)
        assert sorted(merged.weights) == [1, 1, 2]
        merged = distinct_rows(rows, None, np.array([5, 5, 6, 7]), None)
        assert sorted(merged.weights) == [1, 1, 2]
        values = np.array([[1.0, 2.0], [1.0, 2.5], [0.0, 0.0], [0.0, 0.0]])
        assert sorted(distinct_rows(rows, values, None, None).weights) == [1, 1, 2]

    def test_rows_that_differ_in_one_entry_are_not_merged(self):
        rows = np.zeros((201, 200), np.float32)
        rows[np.arange(200), np.arange(200)] = np.float32(1)
        assert distinct_rows(rows, None, None, None).weights is None
        merged = distinct_rows(np.repeat(rows, 3, axis=0), None, None, None)
        np.testing.assert_array_equal(merged.weights, np.full(201, 3))
        np.testing.assert_array_equal(np.unique(merged.X, axis=0), np.unique(rows, axis=0))


class TestTaskLoss:
    @pytest.mark.parametrize("batch_size", [16, 1000])
    def test_classifier_has_the_weighted_mean(self, batch_size):
        adapter = without_penalty(HEAD, batch_size=batch_size).fit(X, Y, sample_weight=WEIGHTS)
        expected = log_loss(Y, HEAD.predict_proba(X), sample_weight=WEIGHTS)
        assert adapter.history_[0]["train_loss"] == pytest.approx(expected, rel=1e-5)

    def test_regressor_has_units_of_the_weighted_variance(self):
        adapter = without_penalty(READS_VALUES).fit(X, VALUES, sample_weight=WEIGHTS)
        score = r2_score(VALUES, READS_VALUES.predict(X), sample_weight=WEIGHTS)
        assert adapter.history_[0]["train_loss"] == pytest.approx(1 - score, rel=1e-5)

    def test_exact_solver_has_the_weighted_mean(self):
        adapter = IStarAdapter(HEAD, lam=0.0, zeta=0.0, solver="exact")
        adapter.fit(X, Y, sample_weight=WEIGHTS)
        expected = log_loss(Y, HEAD.predict_proba(X), sample_weight=WEIGHTS)
        assert adapter.history_[0]["loss"] == pytest.approx(expected)
        free = adapter.set_params(ridge=0.0).fit(X, Y, sample_weight=WEIGHTS)
        probabilities = free.predict_proba(X) - np.eye(2)[Y]
        slopes = (WEIGHTS[:, None] * probabilities).T @ np.column_stack([X, np.ones(120)])
        assert np.abs(slopes).max() < 1e-2 * WEIGHTS.sum()  # the gradient vanishes at the optimum

    def test_scale_of_the_weights_has_no_effect(self):
        for head, y in ((HEAD, Y), (READS_VALUES, VALUES)):
            fits = [
                CosRegAdapter(head, lam=0.0, **QUICK).fit(X, y, sample_weight=factor * WEIGHTS)
                for factor in (1, 1000)
            ]
            np.testing.assert_allclose(fits[0].transform(X), fits[1].transform(X), rtol=1e-4)
            losses = [[epoch["train_loss"] for epoch in fitted.history_[1:]] for fitted in fits]
            np.testing.assert_allclose(*losses, rtol=1e-5)

    def test_members_with_different_rows_have_the_losses_of_single_fits(self):
        from isoadapt.adapters._training._loop import task_loss

        outputs = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0))
        targets, values = torch.arange(7) % 3, torch.arange(21.0).view(7, 3) / 10
        weights = torch.stack([torch.arange(7) + 1.0, torch.ones(7)])
        for goals in (targets, values, values > 1):
            both = task_loss(outputs, goals.expand(2, *goals.shape), weights)
            for member in range(2):
                alone = task_loss(outputs[member : member + 1], goals, weights[member])
                torch.testing.assert_close(both[member : member + 1], alone)
            torch.testing.assert_close(both[1:], task_loss(outputs[1:], goals))


class TestHeadMomentsAndScores:
    def test_head_and_moments_are_weighted(self):
        model = LogisticRegression(C=0.1)
        adapter = IsotropyLayer(model, solver="exact").fit(X, Y, sample_weight=WEIGHTS)
        expected = LinearHead.from_estimator(clone(model).fit(X, Y, sample_weight=WEIGHTS))
        np.testing.assert_allclose(adapter.head_.coef_, expected.coef_, rtol=1e-3, atol=1e-5)

    def test_without_a_head_the_weighted_covariance_is_whitened(self):
        rows = X / X.std(axis=0)
        weights = np.where(rows.sum(axis=1) > rows.sum(axis=1).mean(), 30.0, 0.1)
        whitened = IsotropyLayer(None, solver="exact").fit(rows, sample_weight=weights)
        covariance = np.cov(whitened.transform(rows).T, aweights=weights)
        np.testing.assert_allclose(covariance / covariance[0, 0], np.eye(6), atol=0.03)
        plain = np.cov(whitened.transform(rows).T)
        assert np.abs(plain / plain[0, 0] - np.eye(6)).max() > 0.1

    def test_sampled_shrinkage_is_weighted(self):
        points, weights = torch.from_numpy(X).float(), torch.arange(120) % 3 + 1.0
        rows = Rows(points, None, weights)
        network = LinearNetwork([Affine(np.eye(6), np.zeros(6))])
        penalty = _SampledShrinkage(IsoScoreLoss(0.2, "linear"), 1000)
        with torch.no_grad():
            penalty.refresh(network, Batches(rows, torch.arange(120), 16, []))
        expected = Moments().update(X.astype(np.float32), weights.numpy()).covariance().float()
        torch.testing.assert_close(penalty.prior_cov[0], expected)

    @pytest.mark.parametrize(
        ("adapter", "y", "scoring"),
        [
            (IsotropyLayer(HEAD, **QUICK), Y, "accuracy"),
            (IsotropyLayer(READS_VALUES, **QUICK), VALUES, "r2"),
        ],
        ids=["classifier", "regressor"],
    )
    def test_default_scores_equal_weighted_scores_of_scikit_learn(self, adapter, y, scoring):
        default = clone(adapter).fit(X, y, sample_weight=WEIGHTS)
        named = clone(adapter).set_params(scoring=scoring).fit(X, y, sample_weight=WEIGHTS)
        scores = [[epoch["valid_score"] for epoch in each.history_] for each in (default, named)]
        np.testing.assert_allclose(*scores, rtol=1e-6)
        plain = clone(adapter).fit(X, y)
        assert scores[0] != [epoch["valid_score"] for epoch in plain.history_]

    def test_scoring_gets_the_weights_of_the_validation_rows(self):
        scoring = Recorder()
        CosRegAdapter(READS_VALUES, scoring=scoring, **QUICK).fit(X, VALUES, sample_weight=WEIGHTS)
        of_value = dict(zip(VALUES, WEIGHTS, strict=True))
        assert len(scoring.calls) > 200  # including the bootstrap samples
        for y, sample_weight in scoring.calls:
            np.testing.assert_allclose(sample_weight, [of_value[value] for value in y])

    def test_scoring_without_weights_gets_repeated_rows(self):
        validation = []

        def scoring(estimator, X, y):
            validation.append(y)
            return 0.0

        adapter = CosRegAdapter(READS_VALUES, scoring=scoring, **QUICK)
        adapter.fit(X.repeat(COUNTS, axis=0), VALUES.repeat(COUNTS))
        values, counts = np.unique(validation[0], return_counts=True)
        count_of = dict(zip(VALUES, COUNTS, strict=True))
        assert [count_of[value] for value in values] == counts.tolist()
        with pytest.raises(ValueError, match=r"scoring=.* does not support sample_weight"):
            adapter.fit(X, VALUES, sample_weight=COUNTS)

    def test_head_without_weights_is_fitted_to_repeated_rows(self):
        adapter = CosRegAdapter(Lars(), validation_fraction=None, **QUICK)
        repeated, values = X.repeat(COUNTS, axis=0), VALUES.repeat(COUNTS)
        expected = Lars().fit(repeated, values).coef_
        np.testing.assert_allclose(adapter.fit(repeated, values).head_.coef_[0], expected)
        with pytest.raises(ValueError, match="does not take it in fit"):
            adapter.fit(X, VALUES, sample_weight=COUNTS)

    def test_score_is_the_weighted_accuracy(self):
        adapter = IsotropyLayer(solver="exact").fit(X, Y, sample_weight=WEIGHTS)
        expected = accuracy_score(Y, adapter.predict(X), sample_weight=WEIGHTS)
        assert adapter.score(X, Y, sample_weight=WEIGHTS) == expected


class TestErrors:
    @pytest.mark.parametrize("adapter", [IsotropyLayer(**QUICK), IsotropyLayer(solver="exact")])
    def test_invalid_weights(self, adapter):
        cases = [
            (np.where(COUNTS == 2, -1, COUNTS), "[Nn]egative"),
            (np.full(120, 1 / 120), "sample_weight sums to 1, but frequency weights must sum to"),
            (COUNTS[:-1], r"sample_weight.shape == \(119,\)"),
            (np.where(np.arange(120) == 3, np.nan, COUNTS), "NaN"),
            (np.where(np.arange(120) == 3, 2, 0), "X is constant"),
        ]
        for weights, message in cases:
            with pytest.raises(ValueError, match=message):
                clone(adapter).fit(X, Y, sample_weight=weights)

    def test_invalid_groups(self):
        for groups, message in (
            (np.arange(119), r"groups has shape \(119,\), X has 120 rows: one value for each row"),
            (np.zeros((120, 2)), r"groups has shape \(120, 2\), X has 120 rows"),
            ([None, *range(119)], "groups contains NaN or None.*first in row 0"),
        ):
            with pytest.raises(ValueError, match=message):
                IsotropyLayer(**QUICK).fit(X, Y, groups=groups)


class TestGroups:
    @pytest.mark.parametrize("stratified", [True, False])
    @pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5])
    def test_each_group_stays_on_one_side(self, fraction, stratified):
        rng = np.random.default_rng(0)
        labels = rng.choice(3, p=[0.6, 0.3, 0.1], size=600)
        groups = rng.integers(0, 80, size=600)
        for seed in range(20):
            fitting, validating = split_rows(
                600,
                labels if stratified else None,
                fraction,
                np.random.RandomState(seed),
                groups,
            )
            assert not set(groups[fitting]) & set(groups[validating])
            np.testing.assert_array_equal(
                np.sort(np.concatenate([fitting, validating])), np.arange(600)
            )
            assert len(validating) / 600 == pytest.approx(fraction, abs=0.04)
            if stratified:
                shares = [np.bincount(labels[side]) / len(side) for side in (fitting, validating)]
                np.testing.assert_allclose(*shares, atol=0.08)

    def test_different_seeds_draw_different_groups(self):
        groups = np.arange(200) // 5
        chosen = [
            split_rows(200, None, 0.3, np.random.RandomState(seed), groups)[1] for seed in range(60)
        ]
        times = np.bincount(np.concatenate(chosen), minlength=200)
        assert times.min() > 5
        assert times.max() < 35  # the expectation is 18

    def test_every_class_has_training_rows(self):
        labels = np.repeat([0, 1, 2, 3], [150, 30, 16, 4])
        groups = np.concatenate([np.arange(150) // 5, np.arange(30) // 5 + 50, [90] * 16, [91] * 4])
        for seed in range(20):
            fitting, validating = split_rows(200, labels, 0.7, np.random.RandomState(seed), groups)
            assert set(labels[fitting]) == {0, 1, 2, 3}
            assert validating is not None

    def test_too_few_groups_are_not_split(self):
        for groups in (np.zeros(100), np.repeat([0, 1], [97, 3])):
            fitting, validating = split_rows(
                100, None, 0.3, np.random.RandomState(0), groups.astype(int)
            )
            assert validating is None
            np.testing.assert_array_equal(fitting, np.arange(100))

    @pytest.mark.parametrize("names", [None, [f"g{k}" for k in range(30)]], ids=["int", "str"])
    def test_fit_splits_by_groups(self, names):
        groups = np.random.default_rng(2).integers(0, 30, size=120)
        given = groups if names is None else np.array(names)[groups]
        scoring = Recorder()
        adapter = CosRegAdapter(READS_VALUES, scoring=scoring, **QUICK)
        adapter.fit(X, VALUES, sample_weight=COUNTS, groups=given)
        validation = np.isin(VALUES, scoring.calls[0][0])
        kept = COUNTS > 0
        assert validation.any()
        assert not set(groups[validation]) & set(groups[kept & ~validation])

    @pytest.mark.parametrize(
        "adapter",
        [
            IsotropyLayer(HEAD, ridge=0.1, solver="exact"),
            IsotropyLayer(HEAD, ridge=0.1, validation_fraction=None, **QUICK),
        ],
        ids=["exact", "no split"],
    )
    def test_groups_have_no_effect_without_anything_to_cross_validate(self, adapter):
        rows, labels = X.repeat(2, axis=0), Y.repeat(2)
        plain = clone(adapter).fit(rows, labels).transform(X)
        grouped = clone(adapter).fit(rows, labels, groups=np.arange(240)).transform(X)
        np.testing.assert_array_equal(plain, grouped)
