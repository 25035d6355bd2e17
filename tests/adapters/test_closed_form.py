"""Whitening and LogitPreservingWhitening, and partial_fit of the closed forms."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.base import clone
from sklearn.covariance import ledoit_wolf, oas
from sklearn.datasets import make_blobs
from sklearn.decomposition import PCA

from isoadapt import (
    AllButTheTop,
    IsoBN,
    IsotropyLayer,
    LinearHead,
    LogitPreservingWhitening,
    Whitening,
    adapters,
)
from isoadapt.metrics import isoscore


@pytest.fixture(scope="module")
def cone():
    rng = np.random.default_rng(0)
    scales = np.r_[30.0, np.geomspace(3, 0.01, 23)]
    return rng.normal(size=(600, 24)) * scales @ np.linalg.qr(rng.normal(size=(24, 24)))[0] + 4


def make_head(d, n_classes, seed=0):
    rng = np.random.default_rng(seed)
    return LinearHead(rng.normal(size=(n_classes, d)), rng.normal(size=n_classes), range(n_classes))


class TestWhitening:
    def test_pca_equals_scikit_learn_up_to_the_rank(self, cone):
        few = np.random.default_rng(0).normal(size=(20, 64)) + 3
        for X, rank in ((cone, 24), (few, 19)):
            ours = Whitening("pca", shrinkage=0.0).fit_transform(X)
            theirs = PCA(rank, whiten=True, svd_solver="full").fit_transform(X)
            signs = np.sign((ours[:, :rank] * theirs).sum(axis=0))
            np.testing.assert_allclose(ours[:, :rank] * signs, theirs, atol=1e-8)
            np.testing.assert_array_equal(ours[:, rank:], 0)

    @pytest.mark.parametrize("method", ["zca", "pca"])
    def test_covariance_becomes_the_identity(self, cone, method):
        Z = Whitening(method, shrinkage=0.0).fit_transform(cone)
        np.testing.assert_allclose(np.cov(Z.T), np.eye(24), atol=1e-8)
        np.testing.assert_allclose(Z.mean(axis=0), 0, atol=1e-9)

    def test_zca_changes_the_rows_less_than_pca(self, cone):
        zca, pca = (Whitening(method).fit_transform(cone) for method in ("zca", "pca"))
        centred = cone - cone.mean(axis=0)
        assert ((zca - centred) ** 2).sum() < ((pca - centred) ** 2).sum()

    def test_strength_raises_eigenvalues_to_a_power(self, cone):
        Z = Whitening(shrinkage=0.0, strength=0.5).fit_transform(cone)
        expected = np.sqrt(np.linalg.eigvalsh(np.cov(cone.T)))
        np.testing.assert_allclose(np.linalg.eigvalsh(np.cov(Z.T)), expected, rtol=1e-6)
        centred = Whitening(strength=0.0).fit_transform(cone)
        np.testing.assert_allclose(centred, cone - cone.mean(axis=0), atol=1e-9)

    def test_full_shrinkage_only_scales(self, cone):
        matrix, _ = Whitening(shrinkage=1.0).fit(cone).to_affine()
        np.testing.assert_allclose(matrix, np.eye(24) * matrix[0, 0], atol=1e-9)

    def test_n_components(self, cone):
        assert Whitening("pca", n_components=5).fit_transform(cone).shape == (600, 5)
        Z = Whitening("zca", n_components=5).fit_transform(cone)
        assert Z.shape == (600, 24)
        assert np.linalg.matrix_rank(Z) == 5
        with pytest.raises(ValueError, match="n_components=25 is more than n_features=24"):
            Whitening(n_components=25).fit(cone)

    def test_outputs_of_new_rows_are_bounded_after_a_fit_to_few_rows(self):
        rng = np.random.default_rng(0)
        few, new = rng.normal(size=(20, 64)), rng.normal(size=(100, 64))
        for shrinkage in ("auto", "oas", 0.0):
            assert np.abs(Whitening(shrinkage=shrinkage).fit(few).transform(new)).max() < 20

    def test_weights_whiten_the_weighted_covariance(self, cone):
        frequencies = 1e4 / np.arange(1, 601)
        Z = Whitening(shrinkage=0.0).fit(cone, sample_weight=frequencies).transform(cone)
        np.testing.assert_allclose(np.average(Z, axis=0, weights=frequencies), 0, atol=1e-9)
        cov = (Z * frequencies[:, None]).T @ Z / (frequencies.sum() - 1)
        np.testing.assert_allclose(cov, np.eye(24), atol=1e-8)
        assert isoscore(Z) < 0.95

    def test_inverse_is_stable_with_dropped_components(self):
        X = np.random.default_rng(0).normal(size=(500, 200)) + 3
        for method in ("zca", "pca"):
            whitening = Whitening(method, n_components=90)
            Z = whitening.fit_transform(X)
            back = whitening.inverse_transform(Z)
            np.testing.assert_allclose(whitening.transform(back), Z, atol=1e-10)
            assert np.linalg.norm(back, axis=1).max() <= np.linalg.norm(X, axis=1).max()
            noise = Z + 1e-3 * np.random.default_rng(1).normal(size=Z.shape)
            np.testing.assert_allclose(whitening.inverse_transform(noise), back, atol=0.1)


class TestNamedShrinkage:
    REFERENCES = {"oas": oas, "ledoit-wolf": ledoit_wolf}  # noqa: RUF012

    @pytest.mark.parametrize("name", REFERENCES)
    @pytest.mark.parametrize("shape", [(2, 3), (12, 24), (24, 24), (300, 7), (9000, 3)])
    def test_coefficient_equals_scikit_learn(self, name, shape):
        rng = np.random.default_rng(0)
        X = rng.standard_t(5, size=shape) * np.geomspace(1, 3, shape[1]) + 4
        shrinkage = Whitening(shrinkage=name).fit(X).shrinkage_
        assert shrinkage == pytest.approx(self.REFERENCES[name](X)[1], rel=1e-9, abs=1e-12)
        assert 0 <= shrinkage <= 1

    @pytest.mark.parametrize("name", REFERENCES)
    def test_map_whitens_the_covariance_of_scikit_learn(self, name, cone):
        rows = cone[:40]
        matrix, _ = Whitening(shrinkage=name).fit(rows).to_affine()
        whitened = matrix @ self.REFERENCES[name](rows)[0] @ matrix.T
        np.testing.assert_allclose(whitened, np.eye(24) * 39 / 40, atol=1e-9)

    def test_numbers_are_used_and_names_are_validated(self, cone):
        assert Whitening(shrinkage=0.25).fit(cone).shrinkage_ == 0.25
        with pytest.raises(ValueError, match="'shrinkage' parameter of Whitening must be"):
            Whitening(shrinkage="lasso").fit(cone)

    def test_only_ledoit_wolf_needs_all_rows_at_once(self, cone):
        with pytest.raises(AttributeError) as caught:
            Whitening(shrinkage="ledoit-wolf").partial_fit(cone)
        assert "to fit chunk by chunk, use shrinkage='auto', 'oas'" in str(caught.value.__cause__)
        streamed = Whitening(shrinkage="oas").partial_fit(cone[:10])
        assert streamed.shrinkage_ == pytest.approx(oas(cone[:10])[1])
        assert streamed.partial_fit(cone[10:]).shrinkage_ == pytest.approx(oas(cone)[1])


SPECTRA = {
    "power": np.arange(1, 65) ** -1.0,
    "steep power": np.arange(1, 65) ** -2.0,
    "dominant": np.r_[1000.0, np.ones(63)],
    "exponential": np.exp(-np.arange(64) / 8),
    "flat": np.ones(64),
}


class TestAutomaticShrinkage:
    """The score is the IsoScore of the map applied to the covariance of the population."""

    @staticmethod
    def score(adapter, X, variances):
        root = adapter.fit(X).map_.matrix * np.sqrt(variances)
        return isoscore(np.concatenate([root.T, -root.T]))

    @pytest.mark.parametrize("heavy", [False, True])
    @pytest.mark.parametrize("ratio", [1, 2, 10])
    @pytest.mark.parametrize("spectrum", SPECTRA)
    def test_new_rows_are_as_isotropic_as_with_the_better_of_two_rules(
        self, spectrum, ratio, heavy
    ):
        rng, variances = np.random.default_rng(0), SPECTRA[spectrum]
        head, scores = LinearHead(rng.normal(size=(1, 64)), [0.0]), []
        for _ in range(5):
            X = rng.normal(size=(ratio * 64, 64)) * np.sqrt(variances)
            X /= np.sqrt(rng.chisquare(5, size=(len(X), 1))) if heavy else 1.0
            adapters = [LogitPreservingWhitening(head, shrinkage=s) for s in ("auto", "oas", 1e-3)]
            scores.append([self.score(adapter, X, variances) for adapter in adapters])
        automatic, *others = np.mean(scores, axis=0)
        assert automatic > max(others) - 0.015

    def test_whitening_repairs_new_rows_after_a_fit_to_few(self):
        rng, variances = np.random.default_rng(0), SPECTRA["power"]
        X = rng.normal(size=(65, 64)) * np.sqrt(variances)
        exact, automatic = (self.score(Whitening(shrinkage=s), X, variances) for s in (0.0, "auto"))
        assert exact < 0.1
        assert automatic > 0.5

    @pytest.mark.parametrize("spectrum", ["exponential", "power"])
    def test_a_direction_in_which_one_row_varies_does_not_ruin_new_rows(self, spectrum):
        """As a unit that hardly ever fires: its variance is 50 times that of the fitted rows."""
        rng, variances = np.random.default_rng(0), SPECTRA[spectrum].copy()
        head, scores = LinearHead(rng.normal(size=(1, 64)), [0.0]), []
        variances[9] = 50e-6 * variances.mean()
        for _ in range(5):
            X = rng.normal(size=(1920, 64)) * np.sqrt(variances)
            X[:, 9] = 0
            X[0, 9] = np.sqrt(len(X) * variances[9] / 50)
            adapters = [LogitPreservingWhitening(head, shrinkage=s) for s in ("auto", "oas", 1e-3)]
            scores.append([self.score(adapter, X, variances) for adapter in adapters])
        automatic, *others = np.mean(scores, axis=0)
        assert automatic > max(others) - 0.015

    def test_features_of_few_rows_cost_what_the_guide_says(self):
        """Each coordinate is zero in 19 of 20 rows: the eigenvalues do not show it."""
        variances, scores = SPECTRA["exponential"], []
        for seed in range(5):
            rng = np.random.default_rng(seed)
            X = rng.normal(size=(128, 64)) * np.sqrt(20 * variances)
            X *= rng.random(X.shape) < 0.05
            adapters = [Whitening(shrinkage=s) for s in ("auto", "oas", 1e-3)]
            scores.append([self.score(adapter, X, variances) for adapter in adapters])
        automatic, *others = np.mean(scores, axis=0)
        assert 0.015 < max(others) - automatic < 0.07

    def test_a_dominant_direction_of_the_head_does_not_decide(self):
        """The residual is flat, so it is shrunk fully, whatever the variance that is preserved."""
        rng, variances = np.random.default_rng(0), SPECTRA["dominant"]
        X = rng.normal(size=(200, 64)) * np.sqrt(variances)
        head = LinearHead(np.eye(1, 64), [0.0])
        for rule in ("auto", "oas"):
            assert LogitPreservingWhitening(head, shrinkage=rule).fit(X).shrinkage_ > 0.9

    def test_the_fewest_rows_are_only_scaled(self):
        X = np.random.default_rng(0).normal(size=(2, 6))
        assert Whitening().fit(X).shrinkage_ > 0.99


MOMENTS_ADAPTERS = [
    Whitening(),
    Whitening(shrinkage="oas", strength=0.5),
    LogitPreservingWhitening(head=make_head(5, 2)),
    IsoBN(),
    IsoBN(beta=1.0, eps=1e-6),
    AllButTheTop(),
    AllButTheTop(3),
]


def assert_same_map(ours, theirs):
    for left, right in zip(ours.to_affine(), theirs.to_affine(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-7, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 599), max_size=5), st.sampled_from(MOMENTS_ADAPTERS))
def test_partial_fit_in_any_chunks_equals_fit(cuts, adapter):
    X, _ = make_blobs(600, n_features=5, random_state=0)
    chunked = clone(adapter)
    chunks = [chunk for chunk in np.split(X, sorted(set(cuts))) if len(chunk) > 1]
    for chunk in chunks:
        chunked.partial_fit(chunk)
    assert_same_map(chunked, clone(adapter).fit(np.concatenate(chunks)))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([*MOMENTS_ADAPTERS, Whitening(shrinkage="ledoit-wolf")]),
)
def test_weights_are_frequencies_and_the_order_of_rows_has_no_effect(seed, adapter):
    X, _ = make_blobs(60, n_features=5, random_state=0)
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 4, 60)
    weighted = clone(adapter).fit(X, sample_weight=weights)
    assert_same_map(weighted, clone(adapter).fit(rng.permutation(np.repeat(X, weights, axis=0))))


@pytest.mark.parametrize("adapter", MOMENTS_ADAPTERS, ids=repr)
def test_hundred_thousand_rows(adapter):
    X = np.random.default_rng(0).normal(size=(100_000, 5)) * [9, 3, 1, 1, 0.1] + 100
    whole = clone(adapter).fit(X)
    assert_same_map(whole, clone(adapter).partial_fit(X[:30_000]).partial_fit(X[30_000:]))
    assert np.isfinite(whole.transform(X)).all()


def test_failed_partial_fit_leaves_the_moments_unchanged():
    X, _ = make_blobs(100, n_features=5, random_state=0)
    adapter = Whitening().fit(X)
    with pytest.raises(ValueError, match="n_components=99"):
        adapter.set_params(n_components=99).partial_fit(X)
    assert adapter.moments_.count == 100


def test_head_of_full_width_is_refitted_or_refused_after_pca():
    X, y = make_blobs(200, n_features=5, random_state=0)
    head = make_head(5, 3)
    assert Whitening("pca", n_components=3, head=head).fit(X, y).head_.n_features_in_ == 3
    with pytest.raises(ValueError, match="X has 3 features, but the head expects 5"):
        Whitening("pca", n_components=3, head=head, head_training="frozen").fit(X, y)


def test_partial_fit_is_absent_if_a_head_needs_all_rows():
    assert not hasattr(LogitPreservingWhitening(), "partial_fit")
    assert not hasattr(Whitening(head="logistic"), "partial_fit")
    assert hasattr(Whitening(), "partial_fit")


class TestLogitPreservingWhitening:
    @pytest.mark.parametrize("n_classes", [2, 3, 10])
    def test_logits_of_any_row_are_preserved(self, cone, n_classes):
        head = make_head(24, n_classes)
        adapter = LogitPreservingWhitening(head=head).fit(cone)
        rows = np.random.default_rng(1).normal(size=(500, 24)) * 50
        logits = head.outputs(rows)
        scale = np.abs(logits).max()
        np.testing.assert_allclose(
            head.outputs(adapter.transform(rows)) / scale, logits / scale, atol=1e-12
        )
        np.testing.assert_array_equal(adapter.predict(rows), head.predict(rows))

    def test_preserving_differences_keeps_probabilities_and_raises_isoscore(self, cone):
        head = make_head(24, 3)
        kept = LogitPreservingWhitening(head=head, shrinkage=0.0).fit(cone)
        freed = LogitPreservingWhitening(head=head, shrinkage=0.0, preserve="differences").fit(cone)
        np.testing.assert_allclose(freed.predict_proba(cone), head.predict_proba(cone), atol=1e-9)
        assert np.abs(head.outputs(freed.transform(cone)) - head.outputs(cone)).max() > 1e-3
        assert isoscore(freed.transform(cone)) > isoscore(kept.transform(cone))

    def test_the_repr_of_a_fit_counts_the_free_directions(self, cone):
        adapter = LogitPreservingWhitening(make_head(24, 3))
        assert "free" not in repr(adapter)
        assert repr(adapter.fit(cone)).endswith(": 21 of 24 directions are free")
        freed = LogitPreservingWhitening(make_head(24, 3), preserve="differences").fit(cone)
        assert repr(freed).endswith(": 22 of 24 directions are free")

    @pytest.mark.parametrize(("n_classes", "warned"), [(22, False), (23, True)])
    def test_a_head_that_leaves_hardly_a_direction_free_is_warned_of(
        self, cone, recwarn, n_classes, warned
    ):
        LogitPreservingWhitening(make_head(24, n_classes)).fit(cone)
        messages = [str(each.message) for each in recwarn]
        assert messages == [] or warned
        assert any("rank 23 of n_features=24, so only 1 dir" in each for each in messages) == warned

    def test_isoscore_is_the_maximum_for_preserved_logits(self, cone):
        head = make_head(24, 2)
        adapter = LogitPreservingWhitening(head=head, shrinkage=0.0).fit(cone)
        row_space = np.linalg.svd(head.coef_, full_matrices=False)[2]
        cov = np.cov((cone @ row_space.T).T)
        ratio = np.trace(cov) ** 2 / (cov**2).sum()
        best = (ratio + 24 - 2 - 1) / 23
        assert isoscore(adapter.transform(cone)) == pytest.approx(best, abs=1e-9)

    @pytest.mark.parametrize("strength", [0.3, 0.7])
    def test_scale_outside_the_row_space_maximises_isoscore(self, cone, strength):
        head = make_head(24, 2)
        adapter = LogitPreservingWhitening(head=head, strength=strength, shrinkage=0.1).fit(cone)
        row_space = np.linalg.svd(head.coef_, full_matrices=False)[2]
        Z = adapter.transform(cone) - cone.mean(axis=0)
        fixed = Z @ row_space.T @ row_space
        scores = [isoscore(fixed + factor * (Z - fixed)) for factor in (0.99, 1.0, 1.01)]
        assert max(scores) == scores[1]

    @pytest.mark.filterwarnings("ignore:head has rank 24")
    def test_map_is_the_identity_for_a_full_rank_head(self, cone):
        matrix, offset = LogitPreservingWhitening(head=make_head(24, 30)).fit(cone).to_affine()
        np.testing.assert_allclose(matrix, np.eye(24), atol=1e-9)
        np.testing.assert_allclose(offset, 0, atol=1e-9)

    def test_logits_of_very_different_scale_are_preserved(self, cone):
        head = LinearHead(
            np.diag([1e12, 1.0, 1e-6]) @ make_head(24, 3).coef_, np.zeros(3), range(3)
        )
        adapter = LogitPreservingWhitening(head=head).fit(cone)
        logits = head.outputs(cone)
        kept = head.outputs(adapter.transform(cone))
        np.testing.assert_allclose(
            kept, logits, rtol=1e-8, atol=1e-9 * np.abs(logits).max(axis=0).min()
        )

    def test_preserves_mean_and_logits_after_another_adapter(self, cone):
        head = make_head(24, 2)
        first = Whitening(strength=0.4).fit(cone)
        adapter = LogitPreservingWhitening(head=head).fit(first.transform(cone))
        Z = adapter.transform(first.transform(cone))
        np.testing.assert_allclose(Z.mean(axis=0), first.transform(cone).mean(axis=0), atol=1e-8)
        np.testing.assert_allclose(head.outputs(Z), head.outputs(first.transform(cone)), atol=1e-8)

    def test_preserving_differences_needs_a_classifier(self, cone):
        head = LinearHead(np.eye(1, 24), [0.0])
        with pytest.raises(ValueError, match="preserve='differences' needs a classifier"):
            LogitPreservingWhitening(head=head, preserve="differences").fit(cone)


@pytest.mark.parametrize("make", [LogitPreservingWhitening, partial(IsotropyLayer, solver="exact")])
@pytest.mark.parametrize("rank", [1, 3])
def test_outputs_of_new_rows_are_bounded_in_directions_without_variance(make, rank):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, rank)) @ rng.normal(size=(rank, 8))  # in the head's row space
    head = LinearHead(np.linalg.svd(X)[2][:3], np.zeros(3), range(3))
    adapter = make(head).fit(X, rng.integers(0, 3, 300))
    unseen = X + 0.01 * rng.normal(size=X.shape)
    assert np.abs(adapter.transform(unseen)).max() < 100 * np.abs(X).max()


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_chunk_of_one_row_with_small_weight(weight):
    X = np.random.default_rng(0).normal(size=(40, 3))
    parts = Whitening().partial_fit(X[:39]).partial_fit(X[39:], sample_weight=[weight])
    whole = Whitening().fit(X, sample_weight=np.append(np.ones(39), weight))
    np.testing.assert_allclose(parts.to_affine().matrix, whole.to_affine().matrix, atol=1e-10)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:lbfgs failed")
@pytest.mark.parametrize(
    "make",
    [
        adapters.Whitening,
        adapters.LogitPreservingWhitening,
        adapters.AllButTheTop,
        adapters.IsoBN,
        partial(adapters.FlowAdapter, head=None, max_epochs=1),
        partial(adapters.IsotropyLayer, head=None, solver="exact"),
    ],
)
def test_embeddings_whose_squares_overflow_or_underflow_are_refused(make):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 5)), np.arange(60) % 2
    for scale in (1e100, 1e150):
        assert np.isfinite(make().fit(X * scale, y).transform(X * scale)).all()
    for scale in (1e154, 1e200, 1e300):
        with pytest.raises(ValueError, match=r"X is too large: .* overflow float64; divide X"):
            make().fit(X * scale, y)
    for scale in (1e-155, 1e-170):
        with pytest.raises(ValueError, match=r"X is constant: all 60 rows .* or divide tiny X"):
            make().fit(X * scale, y)
