"""AllButTheTop and ClusterIsotropy."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from isoadapt import AllButTheTop, ClusterIsotropy
from isoadapt.metrics import cumulative_explained_variance, isoscore

SIZES = [90, 60, 40]


def rotation(d, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]


@pytest.fixture(scope="module")
def cone():
    scales = np.r_[30.0, 9.0, np.geomspace(3, 0.1, 10)]
    return np.random.default_rng(0).normal(size=(300, 12)) * scales @ rotation(12) + 4


@pytest.fixture(scope="module")
def clusters():
    """Three distant clusters with different dominant directions, and the cluster numbers."""
    rng = np.random.default_rng(1)
    scales = [5.0, 2.0, 1.0, 0.5, 0.3, 0.1]
    parts = [
        rng.normal(size=(size, 6)) * scales @ rotation(6, seed) + 200 * np.eye(6)[seed]
        for seed, size in enumerate(SIZES)
    ]
    order = rng.permutation(sum(SIZES))
    return np.concatenate(parts)[order], np.repeat(range(3), SIZES)[order]


def without_top(X, n_components):
    """Centre the rows and remove the first singular directions."""
    centred = X - X.mean(axis=0)
    top = np.linalg.svd(centred, full_matrices=False)[2][:n_components]
    return centred - centred @ top.T @ top


class TestAllButTheTop:
    @pytest.mark.parametrize("n_components", [1, 2, 5, 11])
    def test_equals_removal_of_singular_directions(self, cone, n_components):
        adapter = AllButTheTop(n_components)
        expected = without_top(cone, n_components)
        np.testing.assert_allclose(adapter.fit_transform(cone), expected, atol=1e-9)
        np.testing.assert_allclose(
            np.abs(adapter.components_), np.abs(PCA(n_components).fit(cone).components_), atol=1e-7
        )

    def test_other_variances_are_preserved(self, cone):
        Z = AllButTheTop(3).fit_transform(cone)
        np.testing.assert_allclose(Z.mean(axis=0), 0, atol=1e-10)
        before, after = (np.linalg.eigvalsh(np.cov(rows.T))[::-1] for rows in (cone, Z))
        np.testing.assert_allclose(after, np.r_[before[3:], np.zeros(3)], atol=1e-9)

    @pytest.mark.parametrize(("d", "expected"), [(2, 1), (99, 1), (199, 1), (200, 2), (384, 3)])
    def test_default_removes_one_component_per_hundred_features(self, d, expected):
        X = np.random.default_rng(0).normal(size=(40, d))
        assert AllButTheTop().fit(X).components_.shape == (expected, d)

    def test_second_application_has_no_effect(self, cone):
        adapter = AllButTheTop(2).fit(cone)
        Z = adapter.transform(cone)
        np.testing.assert_allclose(adapter.transform(Z + cone.mean(axis=0)), Z, atol=1e-9)

    def test_inverse_is_the_preimage_of_least_norm(self):
        X = np.random.default_rng(0).normal(size=(300, 200)) + 3
        adapter = AllButTheTop(5).fit(X)
        Z = adapter.transform(X)
        back = adapter.inverse_transform(Z)
        np.testing.assert_allclose(adapter.transform(back), Z, atol=1e-9)
        np.testing.assert_allclose(back @ adapter.components_.T, 0, atol=1e-9)
        assert (np.linalg.norm(back, axis=1) <= np.linalg.norm(X, axis=1)).all()

    def test_removed_components_are_at_most_the_rank(self):
        rng = np.random.default_rng(0)
        X, new = rng.normal(size=(4, 10)), rng.normal(size=(20, 10))
        adapter = AllButTheTop(8).fit(X)
        assert np.linalg.matrix_rank(adapter.components_) == 3
        np.testing.assert_array_equal(adapter.components_[3:], 0)
        np.testing.assert_allclose(adapter.transform(X), 0, atol=1e-12)
        assert np.linalg.matrix_rank(adapter.transform(new)) == 7

    @pytest.mark.parametrize("adapter", [AllButTheTop, lambda n: ClusterIsotropy(2, n)])
    def test_removal_of_all_components_is_refused(self, cone, adapter):
        with pytest.raises(
            ValueError, match=r"n_components=12 must be less than n_features=12: choose 1 to 11"
        ):
            adapter(12).fit(cone)
        with pytest.raises(ValueError, match="'n_components' parameter"):
            adapter(0).fit(cone)


class TestClusterIsotropy:
    @pytest.mark.parametrize("n_components", [1, 4])
    def test_single_cluster_equals_all_but_the_top(self, cone, n_components):
        weights = np.random.default_rng(0).integers(0, 3, len(cone))
        for sample_weight in (None, weights):
            ours = ClusterIsotropy(1, n_components).fit(cone, sample_weight=sample_weight)
            theirs = AllButTheTop(n_components).fit(cone, sample_weight=sample_weight)
            np.testing.assert_allclose(ours.transform(cone), theirs.transform(cone), atol=1e-10)

    @pytest.mark.parametrize("n_components", [1, 3])
    def test_each_cluster_is_centred_and_loses_its_own_components(self, clusters, n_components):
        X, island = clusters
        adapter = ClusterIsotropy(3, n_components, random_state=0).fit(X)
        Z = adapter.transform(X)
        for number in range(3):
            rows = island == number
            np.testing.assert_allclose(Z[rows], without_top(X[rows], n_components), atol=1e-9)
        means = np.stack([X[island == number].mean(axis=0) for number in range(3)])
        order = np.argsort(adapter.map_.means[:, :3].argmax(axis=1))
        np.testing.assert_allclose(adapter.map_.means[order], means, atol=1e-9)

    def test_new_rows_are_assigned_to_the_nearest_centre(self, clusters):
        X, _ = clusters
        adapter = ClusterIsotropy(3, random_state=0).fit(X)
        new = np.random.default_rng(2).normal(size=(50, 6)) * 150
        centers, means, components = adapter.map_
        for row, z in zip(new, adapter.transform(new), strict=True):
            c = min(range(3), key=lambda c: np.linalg.norm(row - centers[c]))
            top = components[c]
            np.testing.assert_allclose(z, (row - means[c]) @ (np.eye(6) - top.T @ top), atol=1e-9)

    def test_clusters_are_those_of_k_means(self, cone):
        adapter = ClusterIsotropy(4, random_state=0)
        rows, weights = np.unique(cone, axis=0), np.random.default_rng(0).exponential(size=300)
        for sample_weight in (None, weights):
            adapter.fit(rows, sample_weight=sample_weight)
            theirs = KMeans(4, n_init=5, random_state=0).fit(rows, sample_weight=sample_weight)
            np.testing.assert_allclose(adapter.map_.centers, theirs.cluster_centers_, atol=1e-9)

    @settings(max_examples=20, deadline=None)
    @given(st.integers(0, 2**31 - 1))
    def test_weights_are_frequencies_and_the_order_of_rows_has_no_effect(self, cone, seed):
        rng = np.random.default_rng(seed)
        weights = rng.integers(0, 4, len(cone))
        adapter = ClusterIsotropy(4, random_state=seed)
        weighted = adapter.fit(cone, sample_weight=weights).transform(cone)
        repeated = adapter.fit(rng.permutation(np.repeat(cone, weights, axis=0))).transform(cone)
        np.testing.assert_array_equal(weighted, repeated)

    def test_outputs_of_a_row_do_not_depend_on_the_others(self, cone):
        adapter = ClusterIsotropy(random_state=0).fit(cone)
        single = np.concatenate([adapter.transform(row[None]) for row in cone])
        np.testing.assert_allclose(single, adapter.transform(cone), atol=1e-12)

    def test_at_most_as_many_clusters_as_distinct_rows(self):
        rows = np.random.default_rng(0).normal(size=(5, 3)) + 1e3
        X = np.repeat(rows, [5, 1, 30, 7, 11], axis=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            adapter = ClusterIsotropy(n_clusters=50, n_components=2, random_state=0).fit(X)
        assert len(adapter.map_.centers) == 5
        np.testing.assert_array_equal(adapter.map_.components, 0)
        np.testing.assert_allclose(adapter.transform(X), 0, atol=1e-9)
        np.testing.assert_allclose(adapter.transform(X[:1] + 1e-3), 1e-3, atol=1e-9)

    def test_clusters_lose_at_most_their_rank(self):
        rng = np.random.default_rng(0)
        X = np.concatenate([rng.normal(size=(40, 8)), rng.normal(size=(3, 8)) + 500])
        adapter = ClusterIsotropy(2, 6, random_state=0).fit(X)
        ranks = [np.linalg.matrix_rank(components) for components in adapter.map_.components]
        assert sorted(ranks) == [2, 6]

    def test_affine_form_inverse_and_partial_fit_are_absent(self):
        for name in ("to_affine", "inverse_transform", "partial_fit"):
            assert not hasattr(ClusterIsotropy(), name)


@pytest.mark.parametrize("task", ["mrpc", "rte"])
def test_real_embeddings_become_more_isotropic(shared, task):
    data = np.load(shared / "embeddings" / f"{task}.npz")
    train, X = data["E_train"].astype(float), data["E_dev"].astype(float)
    for adapter in (AllButTheTop(), ClusterIsotropy(random_state=0)):
        Z = adapter.fit(train).transform(X)
        assert cumulative_explained_variance(X, 1) > 0.8
        assert cumulative_explained_variance(Z, 1) < 0.1
        assert isoscore(Z, bias_corrected=True) > 0.2
