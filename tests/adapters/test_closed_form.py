"""Whitening, LogitPreservingWhitening and IsoBN, and partial_fit of the closed forms."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.base import clone
from sklearn.covariance import ledoit_wolf, oas
from sklearn.datasets import make_blobs
from sklearn.decomposition import PCA

from isoadapt import IsoBN, LinearHead, LogitPreservingWhitening, Whitening, adapters
from isoadapt.metrics import isoscore


@pytest.fixture(scope="module")
def cone():
    rng = np.random.default_rng(0)
    scales = np.r_[30.0, np.geomspace(3, 0.01, 23)]
    return rng.normal(size=(200, 24)) * scales @ np.linalg.qr(rng.normal(size=(24, 24)))[0] + 4


def make_head(d, n_classes, seed=0):
    rng = np.random.default_rng(seed)
    return LinearHead(rng.normal(size=(n_classes, d)), rng.normal(size=n_classes), range(n_classes))


class TestWhitening:
    def test_pca_equals_scikit_learn_up_to_the_rank(self, cone):
        for X, rank in ((cone, 24), (cone[:20], 19)):
            ours = Whitening("pca", shrinkage=0.0).fit_transform(X)
            theirs = PCA(rank, whiten=True, svd_solver="full").fit_transform(X)
            signs = np.sign((ours[:, :rank] * theirs).sum(axis=0))
            np.testing.assert_allclose(ours[:, :rank] * signs, theirs, atol=1e-8)
            np.testing.assert_array_equal(ours[:, rank:], 0)

    def test_zca_is_symmetric_and_makes_the_weighted_covariance_the_identity(self, cone):
        for weights in (np.ones(200), 1e4 / np.arange(1, 201)):
            whitening = Whitening(shrinkage=0.0).fit(cone, sample_weight=weights)
            Z, matrix = whitening.transform(cone), whitening.to_affine().matrix
            cov = (weights * Z.T) @ Z / (weights.sum() - 1)
            np.testing.assert_allclose(cov, np.eye(24), atol=1e-8)
            np.testing.assert_allclose(np.average(Z, axis=0, weights=weights), 0, atol=1e-9)
            np.testing.assert_allclose(matrix, matrix.T, atol=1e-9)
            np.testing.assert_allclose(whitening.inverse_transform(Z), cone, atol=1e-9)
            assert np.linalg.eigvalsh(matrix).min() > 0  # of all rotations, it changes rows least

    def test_strength_raises_eigenvalues_to_a_power(self, cone):
        Z = Whitening(shrinkage=0.0, strength=0.5).fit_transform(cone)
        expected = np.sqrt(np.linalg.eigvalsh(np.cov(cone.T)))
        np.testing.assert_allclose(np.linalg.eigvalsh(np.cov(Z.T)), expected, rtol=1e-6)

    def test_n_components_are_the_first_of_all(self, cone):
        options = {"shrinkage": 0.3, "strength": 0.7}
        whole = Whitening("pca", **options).fit_transform(cone)
        first = Whitening("pca", n_components=5, **options).fit_transform(cone)
        np.testing.assert_allclose(first, whole[:, :5], atol=1e-9)
        Z = Whitening("zca", n_components=5, **options).fit_transform(cone)
        np.testing.assert_allclose(Z @ Z.T, first @ first.T, atol=1e-8)

    @pytest.mark.parametrize(("name", "reference"), [("oas", oas), ("ledoit-wolf", ledoit_wolf)])
    @pytest.mark.parametrize("shape", [(2, 3), (12, 24), (300, 7)])
    def test_named_shrinkage_is_that_of_scikit_learn(self, name, reference, shape):
        rng = np.random.default_rng(0)
        X = rng.standard_t(5, size=shape) * np.geomspace(1, 3, shape[1]) + 4
        whitening, n = Whitening(shrinkage=name).fit(X), len(X)
        cov, shrinkage = reference(X)
        assert whitening.shrinkage_ == pytest.approx(shrinkage, rel=1e-9, abs=1e-12)
        if n > 2:
            matrix = whitening.to_affine().matrix
            whitened = matrix @ cov @ matrix.T
            np.testing.assert_allclose(whitened, np.eye(len(cov)) * (n - 1) / n, atol=1e-9)


@pytest.mark.parametrize(
    ("spectrum", "n", "kind"),
    [
        (np.arange(1, 65) ** -2.0, 64, "heavy tails"),
        (np.r_[1000.0, np.ones(63)], 64, "heavy tails"),
        (np.exp(-np.arange(64) / 8), 64, "normal"),
        (np.arange(1, 65) ** -1.0, 1920, "a direction in which one row varies"),
    ],
    ids=["steep power", "dominant", "exponential", "one row"],
)
def test_automatic_shrinkage_is_as_good_for_new_rows_as_the_better_of_two_rules(spectrum, n, kind):
    """The score is the IsoScore of the map applied to the covariance of the population."""
    variances, scores = spectrum.copy(), []
    head = LinearHead(np.random.default_rng(0).normal(size=(1, 64)), [0.0])
    if "one row" in kind:  # its variance is 50 times that of the fitted rows
        variances[9] = 50e-6 * variances.mean()
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, 64)) * np.sqrt(variances)
        if kind == "heavy tails":
            X /= np.sqrt(rng.chisquare(5, size=(n, 1)))
        if "one row" in kind:
            X[1:, 9], X[0, 9] = 0, np.sqrt(n * variances[9] / 50)
        for rule in ("auto", "oas", 1e-3):
            matrix = LogitPreservingWhitening(head, shrinkage=rule).fit(X).map_.matrix
            root = matrix * np.sqrt(variances)
            scores.append(isoscore(np.concatenate([root.T, -root.T])))
    automatic, *others = np.mean(np.reshape(scores, (3, 3)), axis=0)
    assert automatic > max(others) - 0.015


MOMENTS_ADAPTERS = [Whitening(), Whitening(shrinkage="oas", strength=0.5), IsoBN()]
MOMENTS_ADAPTERS += [adapters.AllButTheTop(3), LogitPreservingWhitening(head=make_head(5, 2))]


@settings(max_examples=20)
@given(
    st.lists(st.integers(4, 98), max_size=5),
    st.integers(0, 2**32 - 1),
    st.sampled_from(MOMENTS_ADAPTERS),
)
def test_chunks_weights_and_the_order_of_rows_have_no_effect(cuts, seed, adapter):
    rng, (X, _) = np.random.default_rng(seed), make_blobs(100, n_features=5, random_state=0)
    weights = rng.permutation(np.arange(100) % 4)  # of 150 rows, at most 3 equal
    rows = rng.permutation(np.repeat(X, weights, axis=0))
    expected, weighted, chunked = clone(adapter).fit(rows), clone(adapter), clone(adapter)
    for chunk in np.split(rows, sorted({cut // 2 * 2 for cut in cuts})):
        chunked.partial_fit(chunk)
    for fitted in (weighted.fit(X, sample_weight=weights), chunked):
        for ours, theirs in zip(fitted.to_affine(), expected.to_affine(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-7)


class TestLogitPreservingWhitening:
    @pytest.mark.parametrize(
        "head",
        [
            make_head(24, 2),
            make_head(24, 10),
            LinearHead(np.diag([1e12, 1.0, 1e-6]) @ make_head(24, 3).coef_, np.zeros(3), range(3)),
        ],
        ids=["2", "10", "different scales"],
    )
    def test_logits_of_any_row_and_the_mean_are_preserved(self, cone, head):
        adapter = LogitPreservingWhitening(head=head).fit(cone)
        rows = np.random.default_rng(1).normal(size=(500, 24)) * 50
        logits = head.outputs(rows)
        scale = np.abs(logits).max(axis=0)
        kept = head.outputs(adapter.transform(rows))
        np.testing.assert_allclose(kept / scale, logits / scale, atol=1e-12)
        np.testing.assert_array_equal(adapter.predict(rows), head.predict(rows))
        mean = adapter.transform(cone).mean(axis=0)
        np.testing.assert_allclose(mean, cone.mean(axis=0), atol=1e-8)

    def test_preserving_differences_keeps_probabilities_and_raises_isoscore(self, cone):
        head = make_head(24, 3)
        kept = LogitPreservingWhitening(head=head, shrinkage=0.0).fit(cone)
        freed = clone(kept).set_params(preserve="differences").fit(cone)
        np.testing.assert_allclose(freed.predict_proba(cone), head.predict_proba(cone), atol=1e-9)
        assert np.abs(head.outputs(freed.transform(cone)) - head.outputs(cone)).max() > 1e-3
        assert isoscore(freed.transform(cone)) > isoscore(kept.transform(cone))

    @pytest.mark.parametrize(("strength", "shrinkage"), [(1.0, 0.0), (0.7, 0.1)])
    def test_scale_outside_the_row_space_maximises_isoscore(self, cone, strength, shrinkage):
        head = make_head(24, 2)
        adapter = LogitPreservingWhitening(head, strength=strength, shrinkage=shrinkage).fit(cone)
        row_space = np.linalg.svd(head.coef_, full_matrices=False)[2]
        Z = adapter.transform(cone) - cone.mean(axis=0)
        fixed = Z @ row_space.T @ row_space
        scores = [isoscore(fixed + factor * (Z - fixed)) for factor in (0.99, 1.0, 1.01)]
        assert max(scores) == scores[1]
        if shrinkage == 0:  # the maximum over all maps that preserve the logits
            cov = np.cov((cone @ row_space.T).T)
            ratio = np.trace(cov) ** 2 / (cov**2).sum()
            assert scores[1] == pytest.approx((ratio + 24 - 2 - 1) / 23, abs=1e-9)

    @pytest.mark.parametrize("n_classes", [2, 3, 12])
    def test_texts_of_several_classes_alone_are_told_from_general_ones_among_them(self, n_classes):
        rng = np.random.default_rng(0)
        centres, coef = 10 * rng.normal(size=(2, n_classes, 24))
        own = centres[rng.integers(n_classes, size=400)] + 0.5 * rng.normal(size=(400, 24))
        mixed = np.r_[own, 10 * rng.normal(size=(400, 24))]
        adapter = LogitPreservingWhitening(LinearHead(coef, np.zeros(n_classes), range(n_classes)))
        values = LogitPreservingWhitening(LinearHead(coef, np.zeros(n_classes)))
        with warnings.catch_warnings(action="error"):
            adapter.fit(mixed)
            values.fit(own)
            if n_classes == 2:
                adapter.fit(own)
        if n_classes > 2:
            with pytest.warns(UserWarning, match="texts of one class then move apart"):
                adapter.fit(own)


@pytest.mark.parametrize("rank", [1, 3])
def test_outputs_of_new_rows_are_bounded_in_directions_without_variance(rank):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, rank)) @ rng.normal(size=(rank, 8))  # in the head's row space
    head = LinearHead(np.linalg.svd(X)[2][:3], np.zeros(3), range(3))
    unseen = X + 0.01 * rng.normal(size=X.shape)
    for adapter in (LogitPreservingWhitening(head), adapters.ExactIsotropyLayer(head)):
        adapter.fit(X, rng.integers(0, 3, 300))
        assert np.abs(adapter.transform(unseen)).max() < 100 * np.abs(X).max()


def published_scale(X, beta, eps):
    """Scales by the published formulas, with zero correlations for constant dimensions."""
    cov = np.cov(X.T, ddof=0)
    std = np.sqrt(np.diag(cov))
    products = np.outer(std, std)
    correlation = np.divide(cov, products, where=products > 0, out=np.zeros_like(cov))
    scale = ((correlation**2).mean(axis=0) * std + eps) ** (-beta)
    return scale * np.sqrt(np.trace(cov) / (np.diag(cov) @ scale**2 + eps))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("beta", "eps"), [(0.0, 1e-6), (0.5, 1e-3), (0.8, 0.5), (1.0, 1e-3)])
def test_scales_equal_the_published_formulas(beta, eps, constant):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 6)) @ rng.normal(size=(6, 6)) * [30, 4, 1, 1, 0.3, 0.01] + 5
    if constant:
        X[:, 2] = 7.0
    adapter = IsoBN(beta, eps).fit(X)
    np.testing.assert_allclose(adapter.scale_, published_scale(X, beta, eps), rtol=1e-9)
    Z = adapter.transform(X)
    np.testing.assert_allclose(Z, X * adapter.scale_, rtol=1e-12)
    np.testing.assert_allclose(adapter.inverse_transform(Z), X, atol=1e-9)
