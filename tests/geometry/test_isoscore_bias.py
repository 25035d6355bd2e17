"""The bias of IsoScore and its correction, for rows of any distribution."""

import numpy as np
import pytest
import torch

from isoadapt import LinearHead, LogitPreservingWhitening, metrics
from isoadapt.geometry import Moments
from isoadapt.geometry._isoscore import isoscore_from_covariance, isoscore_star
from isoadapt.geometry._spread import unbiased_squares

F64 = torch.float64
# Rows with independent coordinates of variance 1 or, in the scale mixture, uncorrelated ones:
# there whole rows are wide or narrow, which is what Gaussian formulas miss most.
ROWS = {
    "gaussian": lambda rng, shape: rng.normal(size=shape),
    "t5": lambda rng, shape: rng.standard_t(5, size=shape) * 0.6**0.5,
    "scale mixture": lambda rng, shape: (
        rng.normal(size=shape) * rng.choice([0.5, 1.75**0.5], size=(*shape[:-1], 1))
    ),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
}


def sample_figures(X):
    """Trace and squared norm of the sample covariance, and Σ ‖x - x̄‖⁴ / (n - 1)."""
    n, d = X.shape[-2:]
    Z = X - X.mean(-2, keepdim=True)
    small = (Z @ Z.mT if n < d else Z.mT @ Z) / (n - 1)
    trace, square = small.diagonal(dim1=-2, dim2=-1).sum(-1), small.square().sum((-2, -1))
    return trace, square, Z.square().sum(-1).square().sum(-1) / (n - 1)


@pytest.mark.parametrize("n", [5, 8, 16, 40])
@pytest.mark.parametrize("kind", ROWS)
def test_both_estimates_are_unbiased_for_rows_of_any_distribution(kind, n):
    d, n_draws = 12, 10_000
    rng = np.random.default_rng(n)
    variances = torch.arange(1.0, d + 1, dtype=F64) ** -0.8
    turn = torch.tensor(np.linalg.qr(rng.normal(size=(d, d)))[0])
    X = torch.tensor(ROWS[kind](rng, (n_draws, n, d))) * variances.sqrt() @ turn + 1
    numerator, denominator = unbiased_squares(*sample_figures(X), n)
    for estimate, true in (
        (numerator, variances.sum().square()),
        (denominator, variances.square().sum()),
    ):
        error = float(estimate.std()) / n_draws**0.5
        assert abs(float(estimate.mean() - true)) < 3 * error
        assert error < 0.06 * true  # the test can tell a biased estimate from an unbiased one


@pytest.mark.parametrize("kind", ROWS)
def test_the_score_hardly_depends_on_the_number_of_rows(kind):
    d = 60
    rng = np.random.default_rng(0)
    variances = torch.arange(1.0, d + 1, dtype=F64) ** -0.5
    true = truth(variances)
    for n in (30, 120):
        X = torch.tensor(ROWS[kind](rng, (400, n, d))) * variances.sqrt()
        assert float(isoscore_star(X, bias_corrected=True).mean()) == pytest.approx(true, abs=0.05)
        assert float(isoscore_star(X).mean()) < true - 0.05


def test_real_embeddings_score_the_same_whole_and_in_parts(shared):
    with np.load(shared / "embeddings" / "mrpc.npz") as stored:
        head = LinearHead(stored["W"], stored["b"], [0, 1])
        adapter = LogitPreservingWhitening(head).fit(stored["E_train"])
        Z = adapter.transform(stored["E_test"])
    Z = Z[np.random.default_rng(0).permutation(len(Z))]
    means = [
        np.mean([metrics.isoscore(part, bias_corrected=True) for part in np.array_split(Z, parts)])
        for parts in (1, 2, 8)
    ]
    assert np.ptp(means) < 0.02, means
    assert np.mean([metrics.isoscore(part) for part in np.array_split(Z, 8)]) < means[0] - 0.2


def test_all_rows_equal_but_one_score_zero():
    for dtype in (torch.float32, F64):
        X = torch.full((9, 5), 0.3, dtype=dtype)
        X[4] = torch.arange(5)
        assert float(isoscore_star(X, bias_corrected=True)) == 0
        moved = X.clone().requires_grad_()
        isoscore_star(moved, bias_corrected=True).backward()
        assert not moved.grad.any()
        assert metrics.isoscore(Moments().update(X), bias_corrected=True) == 0


N_DRAWS = 30


def spectra():
    """Twenty decaying Gaussian spectra with the members' draws for four sample sizes each."""
    rng = np.random.default_rng(20)
    for _ in range(20):
        d = int(rng.integers(96, 145))
        variances = np.arange(1, d + 1) ** -rng.uniform(0, 1) * np.exp(0.3 * rng.normal(size=d))
        variances = torch.tensor(variances)
        for n in (d // 12, d // 4, d, 3 * d):
            X = torch.tensor(rng.normal(size=(N_DRAWS, n, d))) * variances.sqrt()
            yield n, d, variances, X


@pytest.fixture(scope="module")
def measured():
    """Sample size, width, variances and, of each draw, plain and corrected score."""
    return [
        (n, d, variances, isoscore_star(X), isoscore_star(X, bias_corrected=True))
        for n, d, variances, X in spectra()
    ]


def truth(variances):
    return float(isoscore_from_covariance(torch.diag(variances)))


def z_score(sample, value):
    return float((sample.mean() - value) / sample.std()) * len(sample) ** 0.5


def test_a_corrected_score_lies_within_three_standard_errors_of_the_truth(measured):
    far: dict[str, list[bool]] = {"few": [], "many": []}
    for n, d, variances, _, corrected in measured:
        wanted = truth(variances)
        errors = (corrected - wanted) / corrected.std()
        far["few" if n < d else "many"] += (errors.abs() > 3).tolist()
        # A ratio of two unbiased estimates has a bias of its own: at n = d/12 up to half of one
        # measurement's standard error, gone among the errors of 30 measurements at n = d.
        assert abs(float(errors.mean())) < (1 if n < d else 3 / N_DRAWS**0.5), (n, d)
    for few_or_many, beyond in far.items():
        assert len(beyond) == 40 * N_DRAWS
        assert np.mean(beyond) < 0.02, few_or_many


def test_the_plain_score_is_far_too_low(measured):
    for n, d, variances, plain, corrected in measured:
        wanted = truth(variances)
        assert z_score(plain, wanted) < -3, (n, d)
        if n < d:  # below it even one single draw is many standard errors away
            assert float((plain.mean() - wanted) / plain.std()) < -3, (n, d)
        if n == d // 12:
            assert float(plain.mean()) < 0.6 * wanted
        assert float((plain.mean() - wanted).abs()) > float((corrected.mean() - wanted).abs())


def test_the_papers_own_example_at_277_rows():
    # A spectrum of the I-STAR paper: d=768, truth 0.8673; plain 0.253, corrected 0.865 ± 0.011.
    variances = torch.ones(768, dtype=F64)
    variances[:4] = torch.tensor([10.0, 6.0, 4.0, 4.0])
    X = torch.tensor(np.random.default_rng(0).normal(size=(277, 768))) * variances.sqrt()
    assert float(isoscore_star(X)) == pytest.approx(0.253, abs=0.01)
    assert float(isoscore_star(X, bias_corrected=True)) == pytest.approx(0.8673, abs=3 * 0.011)
