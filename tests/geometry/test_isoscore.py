"""IsoScore and IsoScore*: the paper's package, exact values, gradients, invariances and bias."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from IsoScore import IsoScore as package

from isoadapt import metrics
from isoadapt.geometry import Moments
from isoadapt.geometry._isoscore import FactoredCovariance, SquaredNorm, isoscore_star
from isoadapt.metrics._points import score_of
from tests.geometry import examples

SETTINGS = settings(deadline=None, derandomize=True)
F64 = torch.float64
CASES = {"n": st.integers(4, 9), "d": st.integers(2, 9), "bias_corrected": st.booleans()}
CASES |= {"members": st.sampled_from([(), (3,), (2, 1)]), "zeta": st.sampled_from([0.0, 0.2, 1.0])}
CASES |= {"prior": st.sampled_from([None, "shared", "each"])}
gradcheck = partial(torch.autograd.gradcheck, fast_mode=True)  # of random combinations
gradgradcheck = partial(torch.autograd.gradgradcheck, fast_mode=True)


def cloud(n, d, seed=0, members=(), decay=0.7):
    return torch.tensor(examples.cloud(*members, n, d, seed=seed, decay=decay))


def shrinkage_covariance(d, seed=1, members=()):
    return torch.stack(
        [torch.cov(cloud(2 * d + 5, d, seed + i).T) for i in range(math.prod(members))]
    ).reshape(*members, d, d)


def prior_for(kind, d, members):
    """No shrinkage covariance, one for all members, or one for each."""
    if kind is None:
        return None
    return shrinkage_covariance(d, members=members if kind == "each" else ())


def reference(X, prior_cov=None, zeta=0.0, bias_corrected=False):
    """The closed form, letter by letter: one cloud, the full covariance."""
    d = X.shape[1]
    sample = np.cov(X.numpy().T)
    prior = np.eye(d) if prior_cov is None else prior_cov.numpy()
    if not bias_corrected:
        eigenvalues = np.linalg.eigvalsh((1 - zeta) * sample + zeta * prior)
        return (eigenvalues.sum() ** 2 / (eigenvalues**2).sum() - 1) / (d - 1)
    S, t1, t2 = np.trace(sample), *examples.over_all_quadruples(X.numpy(), np.arange(len(X)))
    a, b, c = (1 - zeta) ** 2, 2 * zeta * (1 - zeta), zeta**2
    trace_square = a * t1 + b * S * np.trace(prior) + c * np.trace(prior) ** 2
    square = a * t2 + b * (sample * prior).sum() + c * (prior**2).sum()
    return (np.clip(trace_square / square, 1, d) - 1) / (d - 1)


# Values.


@SETTINGS
@given(
    n=st.integers(3, 60),
    d=st.sampled_from([2, 3, 16, 100]),
    zeta=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    own_prior=st.booleans(),
)
def test_equals_the_papers_package(n, d, zeta, own_prior):
    X = cloud(n, d, seed=n + d)
    prior = shrinkage_covariance(d) if own_prior else torch.eye(d, dtype=F64)
    theirs = float(package.IsoScore_star(X.numpy(), prior, zeta))
    ours = float(isoscore_star(X, prior if own_prior else None, zeta))
    assert ours == pytest.approx(theirs, abs=1e-6)
    shown = metrics.isoscore_star(X, prior.numpy() if own_prior else None, zeta=zeta)
    assert shown == pytest.approx(ours, abs=1e-12)
    if not zeta:
        assert metrics.isoscore(X) == pytest.approx(float(package.IsoScore(X.numpy())), abs=1e-6)


@SETTINGS
@given(**CASES)
def test_members_equal_a_loop_over_the_formula(n, d, members, prior, zeta, bias_corrected):
    X, prior_cov = cloud(n, d, members=members), prior_for(prior, d, members)
    scores = isoscore_star(X, prior_cov, zeta, bias_corrected)
    assert scores.shape == members
    for place in np.ndindex(members):
        own = prior_cov[place] if prior == "each" else prior_cov
        wanted = reference(X[place], own, zeta, bias_corrected)
        assert float(scores[place]) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(("k", "d"), [(1, 2), (2, 2), (4, 9), (9, 9), (300, 768)])
def test_k_equal_variances_of_d_score_k_minus_one_over_d_minus_one(k, d):
    axes = torch.eye(d, dtype=F64)[:k]
    score = float(isoscore_star(torch.cat([axes, -axes]) + 0.3))
    assert score == pytest.approx((k - 1) / (d - 1), abs=1e-12)


# Degenerate clouds.


@pytest.mark.parametrize("n", [5, 60])
def test_rank_one_scores_zero_and_never_less(n):
    for seed in range(20):
        X = cloud(n, 1, seed) * cloud(1, 20, seed)
        assert float(isoscore_star(X)) == pytest.approx(0, abs=1e-14)
        assert 0 <= metrics.isoscore(X) < 1e-14
        score = float(isoscore_star(X, bias_corrected=True))
        assert 0 <= score < 1e-14


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_corrected_score_of_a_regular_simplex_is_one(dtype):
    # All n-1 eigenvalues are equal, so the estimate of ‖Σ‖² is zero but for rounding.
    for n in (4, 5, 6, 7, 10, 12, 33, 50):
        X = torch.eye(n, dtype=dtype)
        assert float(isoscore_star(X, bias_corrected=True)) == 1
        assert metrics.isoscore(X, bias_corrected=True) == 1


def test_all_rows_equal_but_one_have_a_corrected_score_of_zero():
    for dtype in (torch.float32, F64):
        X = torch.full((9, 5), 0.3, dtype=dtype)
        X[4] = torch.arange(5)
        assert metrics.isoscore(Moments().update(X), bias_corrected=True) == 0
        score = isoscore_star(X.requires_grad_(), bias_corrected=True)
        assert float(score.detach()) == 0
        assert not torch.autograd.grad(score, X)[0].any()


@pytest.mark.parametrize("scale", [1e-18, 1e-9, 1.0, 1e9, 1e17])
@pytest.mark.parametrize("n", [9, 40])
def test_score_and_gradient_in_float32_do_not_over_or_underflow(n, scale):
    X = cloud(n, 20)
    for bias_corrected in (False, True):
        exact = [X.clone().requires_grad_(), (scale * X).float().requires_grad_()]
        scores = [isoscore_star(points, bias_corrected=bias_corrected) for points in exact]
        assert float(scores[1].detach()) == pytest.approx(float(scores[0].detach()), rel=1e-5)
        wanted, found = map(torch.autograd.grad, scores, exact)
        torch.testing.assert_close(scale * found[0].double(), wanted[0], rtol=1e-3, atol=1e-6)


# Gradients.


@SETTINGS
@given(**CASES)
def test_gradcheck_for_points_and_shrinkage_covariance(n, d, members, prior, zeta, bias_corrected):
    X, prior_cov = cloud(n, d, members=members, decay=2.0), prior_for(prior, d, members)
    score = isoscore_star(X, prior_cov, zeta, bias_corrected)
    assume(bool(((score > 1e-3) & (score < 0.999)).all()))  # else the clamp acts
    inputs = [tensor.requires_grad_() for tensor in (X, prior_cov) if tensor is not None]
    for check in (gradcheck, gradgradcheck):
        assert check(lambda x, c=None: isoscore_star(x, c, zeta, bias_corrected), inputs)


@SETTINGS
@given(**CASES | {"zeta": st.sampled_from([0.3, 1.0])}, rank=st.integers(2, 6))
def test_factor_in_place_of_the_shrinkage_matrix(n, d, members, prior, zeta, bias_corrected, rank):
    root_members = members if prior == "each" else ()
    X = cloud(n, d, members=members, decay=2.0).requires_grad_()
    root = cloud(d, rank, seed=5, members=root_members).requires_grad_()
    zeta = torch.full(members, zeta, dtype=F64) if members else zeta
    exact = FactoredCovariance(root, SquaredNorm.at(root))
    by_factor = isoscore_star(X, exact, zeta, bias_corrected)
    by_matrix = isoscore_star(X, root @ root.mT, zeta, bias_corrected)
    torch.testing.assert_close(by_factor, by_matrix, rtol=1e-12, atol=1e-12)
    weights = torch.arange(1.0, by_factor.numel() + 1, dtype=F64).reshape(members)
    gradients = [
        torch.autograd.grad((score * weights).sum(), (X, root)) for score in (by_factor, by_matrix)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)
    norm = SquaredNorm.at(cloud(d, rank, seed=6, members=root_members))

    def estimated(x, factor):
        prior = FactoredCovariance(factor, norm)
        return isoscore_star(x, prior, zeta, bias_corrected)

    assert gradcheck(estimated, (X, root))


class TestEstimateOfTheSquaredNorm:
    """With ζ = 1 the score depends on Σ_S = BBᵀ alone: its ‖Σ_S‖² is tr²/((d-1)·score + 1)."""

    def squared_norm(self, root):
        return (root @ root.mT).square().sum((-2, -1))

    def estimate(self, root, norm):
        prior = FactoredCovariance(root, norm)
        score = isoscore_star(cloud(4, root.shape[-2], members=root.shape[:-2]), prior, 1.0)
        trace = root.square().sum((-2, -1))
        return trace.square() / ((root.shape[-2] - 1) * score + 1)

    @pytest.mark.parametrize("d", [3, 8])
    def test_is_exact_where_it_was_computed_and_homogeneous(self, d):
        root = cloud(d, 5)
        norm = SquaredNorm.at(root)
        for scale in (0.5, 1.0, 3.0):
            estimate = self.estimate(scale * root, norm)
            torch.testing.assert_close(estimate, scale**4 * self.squared_norm(root))

    def test_zero_factor_has_no_norm_and_no_gradient(self):
        X, root = cloud(5, 6), torch.zeros(6, 5, dtype=F64, requires_grad=True)
        norm = SquaredNorm.at(root)
        score = isoscore_star(X, FactoredCovariance(root, norm), 0.3)
        torch.testing.assert_close(score, isoscore_star(X))
        assert not torch.autograd.grad(score, root)[0].any()


# Invariances and range.


@SETTINGS
@given(
    n=st.integers(2, 40),
    d=st.integers(2, 25),
    decay=st.floats(0, 3),
    scale=st.floats(1e-20, 1e20),
    shift=st.floats(-1e3, 1e3),
    seed=st.integers(0, 1000),
)
def test_rotation_shift_scale_and_order_do_not_matter(n, d, decay, scale, shift, seed):
    rng, X = np.random.default_rng(seed), cloud(n, d, seed, decay=decay).numpy()
    turned = X @ np.linalg.qr(rng.normal(size=(d, d)))[0]
    for bias_corrected in (False, True)[: 1 + (n >= 4)]:
        score = metrics.isoscore(X, bias_corrected=bias_corrected)
        for moved in (turned, X + shift * rng.normal(size=d), -scale * X, rng.permutation(X)):
            again = metrics.isoscore(moved, bias_corrected=bias_corrected)
            assert again == pytest.approx(score, abs=1e-9)


@SETTINGS
@given(
    st.tuples(st.integers(4, 9), st.integers(2, 9)).flatmap(
        lambda shape: arrays(np.float64, shape, elements=st.floats(-1e6, 1e6, width=32))
    )
)
def test_any_cloud_scores_between_zero_and_one(X):
    assume((X[0] != X).any())
    n, d = X.shape
    plain = metrics.isoscore(X)
    assert 0 <= plain <= 1
    assert 0 <= metrics.isoscore(Moments().update(X), bias_corrected=True) <= 1
    assert 0 <= metrics.isoscore_star(X, zeta=0.3) <= 1
    if n <= d:
        assert plain <= (n - 2) / (d - 1) + 1e-12  # the plain score's ceiling


# Bias.


@pytest.mark.parametrize(("heavy_tailed", "decay"), [(False, 0.2), (True, 0.5)])
def test_the_corrected_score_is_right_where_the_plain_one_is_far_too_low(heavy_tailed, decay):
    rng, d, n_draws = np.random.default_rng(0), 96, 30
    variances = torch.arange(1.0, d + 1, dtype=F64) ** -decay
    truth = score_of(variances / variances.sum(), d)
    for n in (d // 12, d // 4, d, 3 * d):
        # Whole rows that are wide or narrow are what formulas for Gaussian rows miss most.
        widths = rng.choice([0.5, 1.75**0.5], size=(n_draws, n, 1)) if heavy_tailed else 1
        X = torch.tensor(rng.normal(size=(n_draws, n, d)) * widths) * variances.sqrt()
        plain, corrected = isoscore_star(X), isoscore_star(X, bias_corrected=True)
        error = float(corrected.mean()) - truth
        # The ratio has a bias of its own: half a deviation at d/12 rows, a fifth for heavy tails.
        few = n < d or heavy_tailed
        assert abs(error) < float(corrected.std()) * (1 if few else 3 / n_draws**0.5), n
        assert float(plain.mean()) < truth - 3 * float(plain.std()) / n_draws**0.5, n
        assert n > d // 12 or float(plain.mean()) < 0.6 * truth


def test_the_papers_own_example_at_277_rows():
    variances = np.array([10.0, 6.0, 4.0, 4.0] + [1.0] * 764)
    X = np.random.default_rng(0).normal(size=(277, 768)) * np.sqrt(variances)
    assert metrics.isoscore(X) == pytest.approx(0.253, abs=0.01)
    assert metrics.isoscore(X, bias_corrected=True) == pytest.approx(0.8673, abs=3 * 0.011)
