"""Rows of the penalised adapters: ``sample_weight``, ``groups``, and the validation rows."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, r2_score

from isoadapt import ExactIsotropyLayer, IsotropyLayer, LinearHead, Whitening, adapters
from isoadapt.adapters._heads import fit_head
from isoadapt.adapters._rows import distinct_rows, split_rows
from tests.adapters.examples import distance_from
from tests.refusals import refusals

pytestmark = pytest.mark.usefixtures("fixed_penalty")
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
    IsotropyLayer(HEAD, **QUICK),
    ExactIsotropyLayer("ridge"),
    adapters.IStarAdapter(HEAD, head_training="joint", ridge=1.0, **QUICK),
    adapters.CosRegAdapter(LogisticRegression(C=0.1), **QUICK),
    adapters.SpectrumControlAdapter(None, **QUICK),
]


class Recorder:
    """A scoring that records its arguments; the values of y identify the rows."""

    def __init__(self):
        self.calls = []

    def __call__(self, estimator, X, y, sample_weight=None):
        self.calls.append((y, sample_weight))
        return 0.0


class TestWeightsAreFrequencies:
    @pytest.mark.parametrize("adapter", ADAPTERS, ids=repr)
    def test_weights_equal_repeated_rows_and_those_of_weight_zero_are_ignored(self, adapter):
        order = np.random.default_rng(1).permutation(120)
        outlying = np.where((COUNTS > 0)[:, None], X, 1e3)
        weighted = clone(adapter).fit(outlying[order], Y[order], sample_weight=COUNTS[order])
        repeated = clone(adapter).fit(X.repeat(COUNTS, axis=0), Y.repeat(COUNTS))
        np.testing.assert_allclose(weighted.transform(X), repeated.transform(X), rtol=1e-7)
        losses = [
            [epoch.get("train_loss", epoch.get("loss", 0.0)) for epoch in fitted.history_]
            for fitted in (weighted, repeated)
        ]
        np.testing.assert_allclose(*losses, rtol=1e-6)

    def test_equal_rows_with_different_labels_or_groups_are_not_merged(self):
        rows = np.array([[1.0, 2.0], [1.0, 2.0], [-0.0, 3.0], [0.0, 3.0]], np.float32)
        merged = distinct_rows(rows, np.array([0, 1, 1, 1]), None, None)
        assert sorted(merged.weights) == [1, 1, 2]
        merged = distinct_rows(rows, None, np.array([5, 5, 6, 7]), None)
        assert sorted(merged.weights) == [1, 1, 2]
        values = np.array([[1.0, 2.0], [1.0, 2.5], [0.0, 0.0], [0.0, 0.0]])
        assert sorted(distinct_rows(rows, values, None, None).weights) == [1, 1, 2]


@pytest.mark.parametrize(
    ("head", "y", "batch_size"), [(HEAD, Y, 16), (HEAD, Y, 1000), (READS_VALUES, VALUES, 64)]
)
def test_the_task_loss_is_the_weighted_mean_and_of_values_one_minus_the_r2(head, y, batch_size):
    """Without a penalty, after one epoch that changes almost nothing."""
    options = {"max_epochs": 1, "lr": 1e-12, "validation_fraction": None, "random_state": 0}
    adapter = adapters.CosRegAdapter(head, lam=0.0, batch_size=batch_size, **options)
    adapter.fit(X, y, sample_weight=WEIGHTS)
    if head is HEAD:
        expected = log_loss(Y, HEAD.predict_proba(X), sample_weight=WEIGHTS)
    else:
        expected = 1 - r2_score(VALUES, head.predict(X), sample_weight=WEIGHTS)
    assert adapter.history_[0]["train_loss"] == pytest.approx(expected, rel=1e-5)


class TestHeadMomentsAndScores:
    def test_a_head_without_weights_is_fitted_to_repeated_rows_if_weights_are_whole(self):
        model = LinearDiscriminantAnalysis()
        adapter = ExactIsotropyLayer(model).fit(X, Y, sample_weight=COUNTS)
        repeated = clone(model).fit(X.repeat(COUNTS, axis=0), Y.repeat(COUNTS))
        expected = LinearHead.from_estimator(repeated)
        np.testing.assert_allclose(adapter.head_.outputs(X), expected.outputs(X), atol=1e-8)
        with pytest.raises(ValueError, match="sample_weight"):
            adapter.fit(X, Y, sample_weight=WEIGHTS)

    def test_head_and_score_are_weighted(self):
        model = LogisticRegression(C=0.1)
        adapter = ExactIsotropyLayer(model).fit(X, Y, sample_weight=WEIGHTS)
        expected = LinearHead.from_estimator(clone(model).fit(X, Y, sample_weight=WEIGHTS))
        np.testing.assert_allclose(adapter.head_.coef_, expected.coef_, rtol=1e-3, atol=1e-5)
        accuracy = accuracy_score(Y, adapter.predict(X), sample_weight=WEIGHTS)
        assert adapter.score(X, Y, sample_weight=WEIGHTS) == accuracy

    def test_without_a_head_the_weighted_covariance_is_whitened(self):
        rows = X / X.std(axis=0)
        weights = np.where(rows.sum(axis=1) > rows.sum(axis=1).mean(), 30.0, 0.1)
        whitened = ExactIsotropyLayer(None).fit(rows, sample_weight=weights)
        covariance = np.cov(whitened.transform(rows).T, aweights=weights)
        np.testing.assert_allclose(covariance / covariance[0, 0], np.eye(6), atol=0.03)


test_invalid_weights_and_groups_are_refused = refusals(
    ({"sample_weight": np.where(COUNTS == 2, -1, COUNTS)}, "[Nn]egative"),
    ({"sample_weight": np.full(120, 1.9 / 120)}, "sample_weight sums to"),
    ({"sample_weight": np.full(120, 1e300)}, "sample_weight sums to"),
    ({"sample_weight": 2 * (np.arange(120) == 3)}, "X is constant"),
    ({"groups": np.arange(119)}, r"groups has shape \(119,\)"),
    ({"groups": [None, *range(119)]}, "groups contains NaN or None"),
    call=lambda given: IsotropyLayer(HEAD, **QUICK).fit(X, Y, **given),
)


def test_weights_that_count_many_rows_as_few_are_named():
    with pytest.warns(UserWarning, match="sample_weight sums to 3 for 120 rows"):
        Whitening().fit(X, sample_weight=np.full(120, 3 / 120))
    with warnings.catch_warnings(action="error"):
        Whitening().fit(np.repeat(X, 10, axis=0), sample_weight=np.full(1200, 0.1))
        Whitening().fit(X, sample_weight=np.arange(120) < 10)
        Whitening().fit(X, sample_weight=np.full(120, 0.2))


class TestGroups:
    @pytest.mark.parametrize(("fraction", "stratified"), [(0.1, False), (0.3, True), (0.5, True)])
    def test_each_group_stays_on_one_side(self, fraction, stratified):
        rng = np.random.default_rng(0)
        labels = rng.choice(3, p=[0.6, 0.3, 0.1], size=600)
        groups = rng.integers(0, 80, size=600)
        given = labels if stratified else None
        for seed in range(10):
            sides = split_rows(600, given, fraction, np.random.RandomState(seed), groups)
            assert not set(groups[sides[0]]) & set(groups[sides[1]])
            np.testing.assert_array_equal(np.sort(np.concatenate(sides)), np.arange(600))
            assert len(sides[1]) / 600 == pytest.approx(fraction, abs=0.04)
            if stratified:
                shares = [np.bincount(labels[side]) / len(side) for side in sides]
                np.testing.assert_allclose(*shares, atol=0.08)

    @pytest.mark.parametrize("grouped", [True, False])
    def test_every_class_has_training_rows(self, grouped):
        labels, groups = np.where(np.arange(20) == 7, 2, np.arange(20) % 2), None
        if grouped:
            labels = np.repeat([0, 1, 2, 3], [150, 30, 16, 4])
            groups = np.r_[np.arange(150) // 5, np.arange(30) // 5 + 50, [90] * 16, [91] * 4]
        for seed in range(20):
            sides = split_rows(len(labels), labels, 0.7, np.random.RandomState(seed), groups)
            assert set(labels[sides[0]]) == set(labels)
            assert sides[1] is not None

    def test_fit_splits_by_groups_and_scores_with_the_weights_of_the_validation_rows(self):
        groups = np.array([f"g{k}" for k in np.random.default_rng(2).integers(0, 30, size=120)])
        scoring = Recorder()
        adapter = adapters.CosRegAdapter(READS_VALUES, scoring=scoring, **QUICK)
        adapter.fit(X, VALUES, sample_weight=COUNTS, groups=groups)
        validation = np.isin(VALUES, scoring.calls[0][0])
        assert validation.any()
        assert not set(groups[validation]) & set(groups[(COUNTS > 0) & ~validation])
        of_value = dict(zip(VALUES, COUNTS, strict=True))
        assert len(scoring.calls) > 200  # including the bootstrap samples
        for y, sample_weight in scoring.calls[::20]:
            np.testing.assert_allclose(sample_weight, [of_value[value] for value in y])

    @pytest.mark.parametrize(
        "adapter",
        [ExactIsotropyLayer("ridge")]
        + [
            adapters.IsoBN(head="ridge", head_training=training) for training in ("frozen", "refit")
        ],
    )
    def test_folds_of_a_head_with_a_name_keep_groups_whole(self, adapter):
        """Values are noise, and only near copies in another fold make them seem to be learnt."""
        rows, values = RNG.normal(size=(40, 60)), RNG.normal(size=40).repeat(5)
        near = rows.repeat(5, axis=0) + 1e-3 * RNG.normal(size=(200, 60))
        sizes = [
            np.linalg.norm(clone(adapter).fit(near, values, groups=groups).head_.coef_)
            for groups in (None, np.arange(40).repeat(5))
        ]
        assert sizes[1] < 0.3 * sizes[0]


ONE_EPOCH = {"max_epochs": 1, "random_state": 0}


def data(n):
    return make_classification(n, 4, n_informative=3, n_redundant=0, random_state=0)


def training_loss(adapter, X, y):
    return clone(adapter).fit(X, y).history_[-1]["train_loss"]


@pytest.mark.parametrize(
    "adapter",
    [
        IsotropyLayer(None, **ONE_EPOCH),
        adapters.CosRegAdapter(coordinates="raw", head_training="joint", **ONE_EPOCH),
        adapters.FlowAdapter("logistic", alpha=0.5, n_blocks=1, hidden=4, **ONE_EPOCH),
    ],
    ids=repr,
)
def test_validation_rows_are_not_used_in_training(adapter):
    """With one epoch there is no choice, so a change of a validation row has no effect."""
    X, y = data(14)
    before, losses = training_loss(adapter, X, y), []
    for row in range(len(X)):
        changed = X.copy()
        changed[row] = 3 - 2 * changed[row]
        losses.append(training_loss(adapter, changed, y))
    assert losses.count(before) == 4  # 0.3 of 14 rows


@pytest.mark.parametrize("n", [39, 40])
def test_head_on_few_rows_is_finally_fitted_to_all_rows(n):
    """Fewer than ten rows for each of the four dimensions count as few."""
    X, y = data(n)
    layer = IsotropyLayer(**ONE_EPOCH).fit(X, y)
    expected = fit_head("logistic", X, y)
    assert np.array_equal(layer.head_.coef_, expected.coef_) == (n < 40)
    given = IsotropyLayer(expected, **ONE_EPOCH).fit(X, y)
    alone = clone(given).set_params(validation_fraction=None).fit(X, y)
    assert np.allclose(layer.transform(X), alone.transform(X), atol=1e-5) == (n < 40)
    assert not np.allclose(given.transform(X), alone.transform(X), atol=1e-5)


def test_second_fit_runs_the_chosen_number_of_epochs():
    X, y = data(30)
    layer = IsotropyLayer(max_epochs=6, patience=2, random_state=0)
    rng = np.random.RandomState(0)
    rng.randint(2**31)  # draws the seed of the shuffles, as fit does
    fitting, _ = split_rows(30, y, 0.3, rng)
    layer.set_params(scoring=distance_from(fit_head("logistic", X[fitting], y[fitting]), X))
    with pytest.warns(UserWarning, match="harms the task"):
        layer.fit(X, y)
    assert (layer.best_epoch_, layer.n_iter_) == (1, 3)
    alone = IsotropyLayer(max_epochs=1, validation_fraction=None, random_state=0).fit(X, y)
    np.testing.assert_allclose(layer.transform(X), alone.transform(X), atol=1e-5)
