"""IsoScore and IsoScore*: against the paper's package, exact values, gradients, bias."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from IsoScore import IsoScore as package

from isoadapt import metrics
from isoadapt.geometry import Moments
from isoadapt.geometry._isoscore import (
    FactoredCovariance,
    SquaredNorm,
    isoscore_from_covariance,
    isoscore_star,
)

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)
F64 = torch.float64
gradcheck = partial(torch.autograd.gradcheck, fast_mode=True)  # of random combinations


def cloud(n, d, seed=0, members=(), decay=0.7):
    rng = np.random.default_rng(seed)
    scales = np.arange(1, d + 1) ** -decay
    X = rng.normal(size=(*members, n, d)) * scales
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return torch.tensor(X @ turn + rng.normal(size=d))


def shrinkage_covariance(d, seed=1, members=()):
    return torch.stack(
        [torch.cov(cloud(2 * d + 5, d, seed + i).T) for i in range(math.prod(members))]
    ).reshape(*members, d, d)


def estimates(X):
    """tr(Σ)² and ‖Σ‖² without bias: means over all quadruples of different rows."""
    n = len(X)
    differences = (X[:, None] - X[None]).reshape(n * n, -1)  # of every pair of rows
    products = (differences @ differences.T).reshape(n, n, n, n)
    squares = np.einsum("abab->ab", products)
    rows = np.arange(n)
    equal = rows[:, None] == rows
    a, b, c, e = np.ix_(rows, rows, rows, rows)
    different = ~(equal[a, b] | equal[a, c] | equal[a, e] | equal[b, c] | equal[b, e] | equal[c, e])
    trace_square = (squares[:, :, None, None] * squares)[different].mean() / 4
    return trace_square, (products**2)[different].mean() / 4


def reference(X, prior_cov=None, zeta=0.0, bias_corrected=False):
    """The closed form, letter by letter: one cloud, the full covariance."""
    d = X.shape[1]
    sample = np.cov(X.numpy().T)
    prior = np.eye(d) if prior_cov is None else prior_cov.numpy()
    if not bias_corrected:
        eigenvalues = np.linalg.eigvalsh((1 - zeta) * sample + zeta * prior)
        return (eigenvalues.sum() ** 2 / (eigenvalues**2).sum() - 1) / (d - 1)
    S, t1, t2 = np.trace(sample), *estimates(X.numpy())
    a, b, c = (1 - zeta) ** 2, 2 * zeta * (1 - zeta), zeta**2
    trace_square = a * t1 + b * S * np.trace(prior) + c * np.trace(prior) ** 2
    square = a * t2 + b * (sample * prior).sum() + c * (prior**2).sum()
    return (np.clip(trace_square / square, 1, d) - 1) / (d - 1)


# The package.

SMALL = [
    (n, d, zeta, kind)
    for n in (8, 50, 300)
    for d in (2, 16, 100)
    for zeta in (0.0, 0.2, 0.5, 1.0)
    for kind in ("identity", "covariance")
]
LARGE = [(n, 768, zeta, "covariance") for n in (8, 2000) for zeta in (0.0, 0.2)]
LARGE += [(50, 768, 0.5, "identity")]


@pytest.mark.parametrize(("n", "d", "zeta", "kind"), SMALL + LARGE)
def test_equals_the_papers_package(n, d, zeta, kind):
    X = cloud(n, d, seed=n + d)
    prior = shrinkage_covariance(d) if kind == "covariance" else torch.eye(d, dtype=F64)
    theirs = float(package.IsoScore_star(X.numpy(), prior, zeta))
    ours = float(isoscore_star(X, prior if kind == "covariance" else None, zeta))
    assert ours == pytest.approx(theirs, abs=1e-6)
    shown = metrics.isoscore_star(X, prior.numpy() if kind == "covariance" else None, zeta=zeta)
    assert shown == pytest.approx(ours, abs=1e-12)
    if not zeta:
        assert metrics.isoscore(X) == pytest.approx(float(package.IsoScore(X.numpy())), abs=1e-6)


# The formula, on both routes.


@pytest.mark.parametrize("bias_corrected", [False, True])
@pytest.mark.parametrize("zeta", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("own_prior", [None, "shared", "each"])
@pytest.mark.parametrize(("n", "d"), [(6, 15), (15, 15), (16, 15), (22, 15), (4, 2)])
def test_members_equal_a_loop_over_the_formula(n, d, own_prior, zeta, bias_corrected):
    X = cloud(n, d, members=(2, 3))
    prior_cov = {
        None: None,
        "shared": shrinkage_covariance(d),
        "each": shrinkage_covariance(d, members=(2, 3)),
    }[own_prior]
    scores = isoscore_star(X, prior_cov, zeta, bias_corrected)
    assert scores.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            prior = prior_cov[i, j] if own_prior == "each" else prior_cov
            wanted = reference(X[i, j], prior, zeta, bias_corrected)
            assert float(scores[i, j]) == pytest.approx(wanted, abs=1e-12)
            alone = isoscore_star(X[i, j], prior, zeta, bias_corrected)
            assert alone.shape == ()
            assert float(alone) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("n", [6, 40])
def test_covariance_form_equals_points_form(n):
    X = cloud(n, 15, members=(3,))
    cov = torch.stack([torch.cov(x.T) for x in X])
    torch.testing.assert_close(isoscore_from_covariance(cov), isoscore_star(X), rtol=0, atol=1e-12)


def test_half_precision_is_computed_in_float32():
    X = cloud(30, 8)
    for dtype in (torch.float16, torch.bfloat16):
        half = X.to(dtype)
        score = isoscore_star(half)
        assert score.dtype == torch.float32
        assert float(score) == pytest.approx(float(isoscore_star(half.double())), abs=1e-6)
    assert isoscore_star(X.float()).dtype == torch.float32
    assert isoscore_star(X).dtype == F64


@pytest.mark.parametrize(
    ("shape", "bias_corrected"), [((1, 5), False), ((3, 5), True), ((9, 1), False)]
)
def test_too_small_clouds_are_refused(shape, bias_corrected):
    with pytest.raises(ValueError, match=rf"n_samples={shape[0]}, n_features={shape[1]}"):
        isoscore_star(torch.zeros(shape), bias_corrected=bias_corrected)


# Exact values.


@pytest.mark.parametrize(("k", "d"), [(1, 2), (2, 2), (1, 9), (4, 9), (9, 9), (300, 768)])
def test_k_equal_variances_of_d_score_k_minus_one_over_d_minus_one(k, d):
    cov = torch.diag((torch.arange(d) < k).to(F64) * 3.7)
    assert float(isoscore_from_covariance(cov)) == pytest.approx((k - 1) / (d - 1), abs=1e-12)
    axes = torch.eye(d, dtype=F64)[:k]
    assert float(isoscore_star(torch.cat([axes, -axes]) + 0.3)) == pytest.approx(
        (k - 1) / (d - 1), abs=1e-12
    )


def test_the_papers_diagonal():
    variances = torch.ones(768, dtype=F64)
    variances[:4] = torch.tensor([10.0, 6.0, 4.0, 4.0])
    score = float(isoscore_from_covariance(torch.diag(variances)))
    assert score == pytest.approx(0.8673388879, abs=1e-10)
    axes = torch.diag(variances.sqrt())
    assert float(isoscore_star(torch.cat([axes, -axes]))) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize("n", [5, 60])
def test_rank_one_scores_zero(n):
    X = torch.linspace(-1, 3, n, dtype=F64)[:, None] * torch.arange(1.0, 21.0, dtype=F64)
    assert float(isoscore_star(X)) == pytest.approx(0, abs=1e-14)
    assert metrics.isoscore(X) == pytest.approx(0, abs=1e-14)
    assert metrics.isoscore(X) >= 0
    assert float(isoscore_star(X, bias_corrected=True)) == pytest.approx(0, abs=1e-14)


def test_constant_rows_score_nan_without_spoiling_other_members():
    X = torch.stack([cloud(7, 5).float(), torch.full((7, 5), 0.1), cloud(7, 5, seed=3).float()])
    scores = isoscore_star(X)
    assert scores.isnan().tolist() == [False, True, False]
    assert torch.equal(scores[[0, 2]], isoscore_star(X[[0, 2]]))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("n", [4, 5, 6, 7, 10, 12, 33, 50])
def test_corrected_score_of_a_regular_simplex_is_one(n, dtype):
    # All n-1 eigenvalues are equal, so the estimate of ‖Σ‖² is zero but for rounding.
    X = torch.eye(n, dtype=dtype)
    assert float(isoscore_star(X, bias_corrected=True)) == 1
    assert metrics.isoscore(X, bias_corrected=True) == 1


# Gradients.


@pytest.mark.parametrize("bias_corrected", [False, True])
@pytest.mark.parametrize("zeta", [0.0, 0.2, 1.0])
@pytest.mark.parametrize(("n", "d"), [(4, 6), (9, 4), (5, 5)])
@pytest.mark.parametrize("members", [(), (2, 1)])
def test_gradcheck_with_respect_to_points(n, d, zeta, bias_corrected, members):
    X = cloud(n, d, members=members, decay=2.0).requires_grad_()
    for prior_cov in (None, shrinkage_covariance(d), shrinkage_covariance(d, members=members)):
        score = isoscore_star(X.detach(), prior_cov, zeta, bias_corrected)
        assert bool((score > 0).all())
        assert bool((score < 1).all()) or (prior_cov is None and zeta == 1)  # else the clamp acts
        assert gradcheck(lambda x, S=prior_cov: isoscore_star(x, S, zeta, bias_corrected), X)


@pytest.mark.parametrize("bias_corrected", [False, True])
@pytest.mark.parametrize("zeta", [0.2, 1.0])
@pytest.mark.parametrize(("n", "d"), [(4, 6), (9, 4), (5, 5)])
@pytest.mark.parametrize(("members", "prior_members"), [((), ()), ((3,), ()), ((3,), (3,))])
def test_gradcheck_with_respect_to_the_shrinkage_covariance(
    n, d, zeta, bias_corrected, members, prior_members
):
    X = cloud(n, d, members=members)
    prior_cov = shrinkage_covariance(d, members=prior_members).requires_grad_()
    assert gradcheck(lambda c: isoscore_star(X, c, zeta, bias_corrected), prior_cov)
    both = X.clone().requires_grad_()
    assert gradcheck(
        lambda x, c: isoscore_star(x, c @ c.mT, zeta, bias_corrected), (both, prior_cov)
    )


@pytest.mark.parametrize("bias_corrected", [False, True])
@pytest.mark.parametrize(("n", "d", "rank"), [(4, 6, 6), (9, 4, 4), (5, 5, 3)])
@pytest.mark.parametrize(("members", "root_members"), [((), ()), ((3,), ()), ((2, 1), (2, 1))])
@pytest.mark.parametrize("weighted", [False, True])
def test_factor_of_the_shrinkage_covariance_in_its_place(
    n, d, rank, bias_corrected, members, root_members, weighted
):
    X = cloud(n, d, members=members).requires_grad_()
    root = cloud(d, rank, seed=5, members=root_members).requires_grad_()
    variances = torch.linspace(0.0, 2.0, rank, dtype=F64) if weighted else None
    zeta = torch.full(members, 0.3, dtype=F64) if members else 0.3
    by_factor = isoscore_star(X, FactoredCovariance(root, variances), zeta, bias_corrected)
    matrix = (root if variances is None else root * variances) @ root.mT
    by_matrix = isoscore_star(X, matrix, zeta, bias_corrected)
    torch.testing.assert_close(by_factor, by_matrix, rtol=1e-12, atol=1e-12)
    weights = torch.arange(1.0, by_factor.numel() + 1, dtype=F64).reshape(members)
    gradients = [
        torch.autograd.grad((score * weights).sum(), (X, root)) for score in (by_factor, by_matrix)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)
    norm = SquaredNorm.at(cloud(d, rank, seed=6, members=root_members), variances)
    for squared_norm in (None, norm):  # exact, and estimated from another factor
        assert gradcheck(
            lambda x, b, squared_norm=squared_norm: isoscore_star(
                x, FactoredCovariance(b, variances, squared_norm), zeta, bias_corrected
            ),
            (X, root),
        )


class TestSquaredNorm:
    """With ζ = 1 the score depends on Σ_S = BVBᵀ alone: its ‖Σ_S‖² is tr²/((d-1)·score + 1)."""

    variances = torch.tensor([0.0, 0.5, 1.0, 2.0, 3.0], dtype=F64)

    def squared_norm(self, root):
        return ((root * self.variances) @ root.mT).square().sum()

    def estimate(self, root, at):
        prior = FactoredCovariance(root, self.variances, SquaredNorm.at(at, self.variances))
        score = isoscore_star(cloud(4, len(root)), prior, 1.0)
        trace = (root.square() @ self.variances).sum()
        return trace.square() / ((len(root) - 1) * score + 1)

    @pytest.mark.parametrize("d", [3, 8])
    def test_value_and_gradient_are_those_of_autograd(self, d):
        root = cloud(d, 5).requires_grad_()
        value, gradient = SquaredNorm.at(root, self.variances)
        expected = self.squared_norm(root)
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient, torch.autograd.grad(expected, root)[0])

    @pytest.mark.parametrize("d", [3, 8])
    def test_estimate_is_exact_where_it_was_computed_and_homogeneous(self, d):
        root = cloud(d, 5)
        for scale in (0.5, 1.0, 3.0):
            estimate = self.estimate(scale * root, at=root)
            torch.testing.assert_close(estimate, scale**4 * self.squared_norm(root))

    def test_estimate_is_a_lower_bound_with_an_error_of_second_order(self):
        root, direction = cloud(6, 5), cloud(6, 5, seed=1)
        errors = []
        for size in (0.4, 0.2, 0.1, 0.05):
            moved = root + size * direction
            errors.append((self.squared_norm(moved) - self.estimate(moved, at=root)).item())
        assert min(errors) > 0
        ratios = [larger / smaller for larger, smaller in itertools.pairwise(errors)]
        assert ratios[-1] == pytest.approx(4, rel=0.1)

    @pytest.mark.parametrize("members", [[], [1], [0, 2]])
    def test_renewal_of_some_members(self, members):
        old, new = cloud(4, 5, members=(3,)), cloud(4, 5, seed=1, members=(3,))
        norm, expected = (SquaredNorm.at(old, self.variances) for _ in range(2))
        norm.renew(members, new, self.variances)
        for whole, part in zip(expected, SquaredNorm.at(new, self.variances), strict=True):
            whole[members] = part[members]
        torch.testing.assert_close(tuple(norm), tuple(expected))

    def test_zero_factor_has_no_norm_and_no_gradient(self):
        X, root = cloud(5, 6), torch.zeros(6, 5, dtype=F64, requires_grad=True)
        score = isoscore_star(X, FactoredCovariance(root, self.variances), 0.3)
        torch.testing.assert_close(score, isoscore_star(X))
        (gradient,) = torch.autograd.grad(score, root)
        assert not gradient.any()


@pytest.mark.parametrize("bias_corrected", [False, True])
@pytest.mark.parametrize(("n", "d"), [(4, 6), (9, 4)])
def test_members_may_differ_in_zeta(n, d, bias_corrected):
    X, prior_cov = cloud(n, d, members=(4,)).requires_grad_(), shrinkage_covariance(d)
    zetas = [0.0, 0.2, 0.7, 1.0]
    together = isoscore_star(X, prior_cov, torch.tensor(zetas), bias_corrected)
    alone = [isoscore_star(x, prior_cov, z, bias_corrected) for x, z in zip(X, zetas, strict=True)]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-7, atol=1e-7)
    exact = torch.tensor(zetas, dtype=F64)
    assert gradcheck(lambda x: isoscore_star(x, prior_cov, exact, bias_corrected), X)


def test_gradcheck_of_the_covariance_form():
    assert gradcheck(
        isoscore_from_covariance, shrinkage_covariance(5, members=(2,)).requires_grad_()
    )


def test_a_clamped_score_has_zero_gradient():
    axes = torch.eye(4, dtype=F64)
    X = torch.cat([axes, -axes]).requires_grad_()
    score = isoscore_star(X, bias_corrected=True)
    assert float(score.detach()) == 1
    assert not torch.autograd.grad(score, X)[0].any()


@pytest.mark.parametrize(("n", "d"), [(20, 5), (5, 20)])
@pytest.mark.parametrize("zeta", [0.0, 0.3])
def test_autocast_neither_coarsens_the_score_nor_breaks_its_gradient(n, d, zeta):
    plain = cloud(n, d).float().requires_grad_()
    mixed = plain.detach().clone().requires_grad_()
    prior_cov = shrinkage_covariance(d).float()
    wanted = isoscore_star(plain, prior_cov, zeta)
    wanted.backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        score = isoscore_star(mixed, prior_cov, zeta)
    assert score.dtype == torch.float32
    assert score.item() == pytest.approx(wanted.item(), abs=1e-6)
    score.backward()
    torch.testing.assert_close(mixed.grad, plain.grad)


# Invariance.

clouds = st.builds(
    cloud,
    n=st.integers(2, 40),
    d=st.integers(2, 25),
    seed=st.integers(0, 10_000),
    decay=st.floats(0, 3),
)


@SETTINGS
@given(
    X=clouds,
    scale=st.floats(1e-20, 1e20),
    sign=st.sampled_from([-1, 1]),
    shift=st.floats(-1e3, 1e3),
    seed=st.integers(0, 1000),
)
def test_rotation_shift_scale_and_order_do_not_matter(X, scale, sign, shift, seed):
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(X.shape[1],) * 2))[0]
    moved = {
        "rotation": X.numpy() @ turn,
        "shift": X.numpy() + shift * rng.normal(size=X.shape[1]),
        "scale": X.numpy() * (sign * scale),
        "order": X.numpy()[rng.permutation(len(X))],
    }
    for bias_corrected in (False, True)[: 1 + (len(X) >= 4)]:
        score = metrics.isoscore(X, bias_corrected=bias_corrected)
        assert 0 <= score <= 1
        for name, other in moved.items():
            again = metrics.isoscore(other, bias_corrected=bias_corrected)
            assert again == pytest.approx(score, abs=1e-9), name


@SETTINGS
@given(
    st.tuples(st.integers(4, 9), st.integers(2, 9)).flatmap(
        lambda shape: arrays(np.float64, shape, elements=st.floats(-1e6, 1e6, width=32))
    )
)
def test_any_cloud_scores_between_zero_and_one(X):
    if (X[0] == X).all():
        for bias_corrected in (False, True):
            with pytest.raises(ValueError, match="constant"):
                metrics.isoscore(X, bias_corrected)
        return
    n, d = X.shape
    plain = metrics.isoscore(X)
    assert 0 <= plain <= 1
    if len(np.unique(X, axis=0)) >= 4:
        assert 0 <= metrics.isoscore(X, bias_corrected=True) <= 1
    assert 0 <= metrics.isoscore(Moments().update(X), bias_corrected=True) <= 1
    assert 0 <= metrics.isoscore_star(X, zeta=0.3) <= 1
    if n <= d:
        assert plain <= (n - 2) / (d - 1) + 1e-12  # the plain score's ceiling
