"""AllButTheTop and ClusterIsotropy."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from isoadapt import AllButTheTop, ClusterIsotropy

SIZES = [30, 20, 15]


def rotation(d, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]


@pytest.fixture(scope="module")
def cone():
    scales = np.r_[30.0, 9.0, np.geomspace(3, 0.1, 10)]
    return np.random.default_rng(0).normal(size=(100, 12)) * scales @ rotation(12) + 4


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
    @pytest.mark.parametrize("n_components", [1, 5, 11])
    def test_equals_removal_of_principal_components(self, cone, n_components):
        adapter = AllButTheTop(n_components)
        expected = without_top(cone, n_components)
        np.testing.assert_allclose(adapter.fit_transform(cone), expected, atol=1e-9)
        theirs = PCA(n_components).fit(cone).components_
        np.testing.assert_allclose(np.abs(adapter.components_), np.abs(theirs), atol=1e-7)

    def test_default_removes_one_component_per_hundred_features(self):
        for d, expected in ((2, 1), (199, 1), (200, 2)):
            X = np.random.default_rng(0).normal(size=(10, d))
            assert AllButTheTop().fit(X).components_.shape == (expected, d)

    def test_removed_components_are_at_most_the_rank(self):
        rng = np.random.default_rng(0)
        X, new = rng.normal(size=(4, 10)), rng.normal(size=(20, 10))
        adapter = AllButTheTop(8).fit(X)
        assert np.linalg.matrix_rank(adapter.components_) == 3
        np.testing.assert_array_equal(adapter.components_[3:], 0)
        np.testing.assert_allclose(adapter.transform(X), 0, atol=1e-12)
        assert np.linalg.matrix_rank(adapter.transform(new)) == 7


class TestClusterIsotropy:
    @pytest.mark.parametrize("weighted", [False, True])
    def test_single_cluster_equals_all_but_the_top(self, cone, weighted):
        weights = np.random.default_rng(0).integers(0, 3, len(cone)) if weighted else None
        ours = ClusterIsotropy(1, 4).fit(cone, sample_weight=weights)
        theirs = AllButTheTop(4).fit(cone, sample_weight=weights)
        np.testing.assert_allclose(ours.transform(cone), theirs.transform(cone), atol=1e-10)

    def test_each_cluster_is_centred_and_loses_its_own_components(self, clusters):
        X, island = clusters
        Z = ClusterIsotropy(3, 3, random_state=0).fit(X).transform(X)
        for number in range(3):
            rows = island == number
            np.testing.assert_allclose(Z[rows], without_top(X[rows], 3), atol=1e-9)

    def test_new_rows_belong_to_the_nearest_centre_whatever_the_others_are(self, clusters):
        adapter = ClusterIsotropy(3, random_state=0).fit(clusters[0])
        new = np.random.default_rng(2).normal(size=(50, 6)) * 150
        centers, means, components = adapter.map_
        for row, z in zip(new, adapter.transform(new), strict=True):
            c = min(range(3), key=lambda c: np.linalg.norm(row - centers[c]))
            top = components[c]
            np.testing.assert_allclose(z, (row - means[c]) @ (np.eye(6) - top.T @ top), atol=1e-9)
            np.testing.assert_allclose(adapter.transform(row[None])[0], z, atol=1e-12)

    @pytest.mark.parametrize("seed", [0, 1])
    def test_weights_are_frequencies_and_the_order_of_rows_has_no_effect(self, cone, seed):
        rng = np.random.default_rng(seed)
        weights = rng.integers(0, 4, len(cone))
        adapter = ClusterIsotropy(4, random_state=seed)
        weighted = adapter.fit(cone, sample_weight=weights).transform(cone)
        repeated = adapter.fit(rng.permutation(np.repeat(cone, weights, axis=0))).transform(cone)
        np.testing.assert_array_equal(weighted, repeated)
