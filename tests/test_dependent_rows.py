"""Copies of rows, groups of dependent rows, rows that dominate, and embeddings beyond memory."""

import tracemalloc
import warnings

import numpy as np
import pytest
import torch

from isoadapt.geometry import Moments
from isoadapt.metrics import isoscore, isotropy_report
from tests.refusals import refusals
from tests.small_blocks import as_memmap, small_blocks

pytestmark = pytest.mark.filterwarnings("ignore:.*3 × n_features")


def cloud(n, d=16, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * np.linspace(1, 3, d) + 1


def as_dask(X, rows=37):
    return pytest.importorskip("dask.array").from_array(X, chunks=(rows, X.shape[1]))


def as_iterator(X):
    return iter(np.array_split(X, 7))


# Copies


CONTAINERS = [as_dask, as_iterator, np.asarray, torch.tensor, as_memmap]


def contained(kind, X, folder):
    return kind(X, folder) if kind is as_memmap else kind(X)


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("noise", [0, 1e-9])
def test_few_copies_of_rows_count_once_in_the_corrected_score(kind, noise, tmp_path):
    X, rng = cloud(40), np.random.default_rng(1)
    counts = 1 + (np.arange(40) < 4)
    copies = X[rng.permutation(np.repeat(np.arange(40), counts))]
    copies += noise * rng.normal(size=copies.shape)
    once = isoscore(X, bias_corrected=True)
    found = isoscore(contained(kind, copies, tmp_path), bias_corrected=True)
    assert found == pytest.approx(once, rel=1e-12 + 100 * noise)
    report = isotropy_report(copies)
    assert report.isoscore_corrected == pytest.approx(found, rel=1e-12)
    assert report.n_samples == 44
    repeated = isoscore(Moments().update(X, counts.astype(float)))
    for plain in (report.isoscore, isoscore(copies)):
        assert plain == pytest.approx(repeated, rel=1e-12 + 100 * noise)
    named = np.repeat(np.arange(40), 10)
    assert isoscore(X[named], True, groups=named) == pytest.approx(once, rel=1e-9)


def score_of(variances, rank_one=0.0):
    cov = np.diag(variances) - rank_one
    return (cov.trace() ** 2 / (cov**2).sum() - 1) / (len(cov) - 1)


SHARES = 0.5 ** np.arange(1, 33) / (1 - 0.5**32)
FLAGS = np.array([0.5, 0.3, 0.2, 0.1, 0.05, 0.02])
RATES = np.array([1, 0.5, 0.2, 0.1, 0.1, 0.1])
DISCRETE = {
    "one-hot": (
        lambda rng, n: np.eye(32)[rng.choice(32, n, p=SHARES)],
        score_of(SHARES, np.outer(SHARES, SHARES)),
    ),
    "flags": (lambda rng, n: 1.0 * (rng.random((n, 6)) < FLAGS), score_of(FLAGS * (1 - FLAGS))),
    "counts": (lambda rng, n: 1.0 * rng.poisson(RATES, (n, 6)), score_of(RATES)),
}


@pytest.mark.filterwarnings("ignore:.*holds")
@pytest.mark.parametrize("law", DISCRETE)
def test_equal_draws_of_a_discrete_distribution_are_not_taken_as_copies(law, tmp_path):
    draw, truth = DISCRETE[law]
    for n in (200, 1000):
        draws = [draw(np.random.default_rng(seed), n) for seed in range(10)]
        turn = np.linalg.qr(cloud(*draws[0].shape[1:] * 2))[0]
        for some in (draws, [X @ turn for X in draws]):
            assert abs(np.mean([isoscore(X, True) for X in some]) - truth) < 0.03
    X = draws[0]
    for kind in CONTAINERS:
        found = isoscore(contained(kind, X, tmp_path), True)
        assert found == pytest.approx(isoscore(X, True), rel=1e-9)
    assert isoscore(X, True, np.arange(n)) == pytest.approx(found, rel=1e-9)
    with pytest.warns(UserWarning, match=r"different\) is less than .* draws.* pass groups="):
        isotropy_report(np.repeat(np.eye(8), 20, axis=0))


test_fewer_than_four_rows_or_groups_are_refused = refusals(
    (lambda X: isoscore(X[:3], True), "minimum of 4"),
    (lambda X: isoscore(iter([X[:2], X[:1]]), True), "X has 3 row.*at least 4"),
    (lambda X: isotropy_report(X, np.arange(60) % 3), "groups has 3 different.*labels="),
    (lambda X: isoscore(X, True, np.arange(60) % 3), "groups has 3 different"),
    (lambda X: isoscore(X, True, np.arange(59)), "groups has shape"),
    (lambda X: isoscore(X, groups=np.arange(60) // 4), "bias_corrected=True too"),
    (lambda X: isoscore(as_iterator(X), True, np.arange(60)), "rows at once"),
    call=lambda call: call(cloud(60)),
    errors=(TypeError, ValueError),
)


# Groups


def tokens(n_texts, seed=0, n_tokens=30, d=16):
    """Tokens of texts that share 80 % of their variance; the true score is that of `cloud`."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(n_texts), n_tokens)
    shared, own = rng.normal(size=(n_texts, d)), rng.normal(size=(len(owners), d))
    return (0.8**0.5 * shared[owners] + 0.2**0.5 * own) * np.linspace(1, 3, d), owners


def test_with_groups_the_tokens_of_few_texts_give_the_score_of_many():
    variances = np.linspace(1, 3, 16) ** 2
    truth = (variances.sum() ** 2 / (variances**2).sum() - 1) / 15
    draws = [tokens(20, seed) for seed in range(30)]
    assert abs(np.mean([isoscore(X, True, groups) for X, groups in draws]) - truth) < 0.05
    assert np.mean([isoscore(X, True) for X, _ in draws]) < truth - 0.15


@pytest.mark.parametrize("shape", [(90, 16), (30, 40)])
def test_every_container_gives_the_score_of_the_groups(shape, tmp_path):
    X = cloud(*shape)
    groups = np.array([f"text {i}" for i in np.random.default_rng(0).integers(0, 9, len(X))])
    score = isoscore(X, True, groups)
    assert score != pytest.approx(isoscore(X, True), rel=1e-3)
    for kind in (as_dask, torch.tensor, np.asfortranarray, lambda X: as_memmap(X, tmp_path)):
        assert isoscore(kind(X), True, groups) == pytest.approx(score, rel=1e-12)
        report = isotropy_report(kind(X), groups=groups)
        assert report.isoscore_corrected == pytest.approx(score, rel=1e-12)
        assert report.isoscore == pytest.approx(isoscore(X), rel=1e-12)
    order = np.random.default_rng(1).permutation(len(X))
    assert isoscore(X[order], True, groups[order]) == pytest.approx(score, rel=1e-12)
    assert isoscore(1e60 * X + 3, True, groups) == pytest.approx(score, rel=1e-9)


def test_groups_of_equal_rows_count_once_also_with_labels():
    X, groups = tokens(20)
    again = groups < 4  # a sixth of all groups
    rows, twice = np.r_[X, X[again][::-1]], np.r_[groups, 100 + groups[again][::-1]]
    score = isoscore(X, True, groups)
    assert isoscore(rows, True, twice) == pytest.approx(score, rel=1e-12)
    assert isoscore(X, True, np.arange(len(X))) == pytest.approx(isoscore(X, True), rel=1e-12)
    report = isotropy_report(rows, groups=twice, labels=np.where(twice < 100, "first", "again"))
    for own in (report, report.labels["first"]):
        assert own.isoscore_corrected == pytest.approx(score, rel=1e-12)
    few = isotropy_report(X, groups=groups, labels=np.where(groups < 3, "few", "rest"))
    assert np.isnan(few.labels["few"].isoscore_corrected)
    expected = isoscore(X[groups > 2], True, groups[groups > 2])
    assert few.labels["rest"].isoscore_corrected == pytest.approx(expected, rel=1e-12)


@pytest.mark.filterwarnings("default:.*3 × n_features")
def test_warnings_of_few_rows_count_different_rows_or_groups():
    X, labels = cloud(400), np.repeat(["copies", "rest"], [36, 364])
    X[:36] = X[np.arange(36) % 30]
    groups = np.r_[np.arange(200) % 20, 20 + np.arange(200)]
    for message, arguments in {
        r"n_samples=48 \(40 different\) is less": (np.r_[cloud(40), cloud(8)],),
        "number of different groups, 20, is less": (cloud(60), np.arange(60) % 20),
        r"1 of 2 labels have fewer rows than .*copies \(30\)": (X, None, labels),
        r"1 of 2 labels have fewer groups than .*copies \(20\)": (cloud(400), groups, labels),
    }.items():
        with pytest.warns(UserWarning, match=message):
            isotropy_report(*arguments)
    with warnings.catch_warnings(action="error"):
        isotropy_report(cloud(48))  # three times its features


@pytest.mark.filterwarnings("default:.*3 × n_features")
def test_the_score_of_few_rows_that_occur_often_warns():
    X = np.tile(cloud(40), (10, 1))
    for given in (X, as_iterator(X), as_dask(X)):
        with pytest.warns(UserWarning, match=r"40 different.* equal ones count as draws"):
            isoscore(given, bias_corrected=True)
    with warnings.catch_warnings(action="error"):
        for few in (cloud(40), X[:44], as_iterator(X[:44]), np.tile(cloud(48), (10, 1))):
            isoscore(few, bias_corrected=True)
        isoscore(X, bias_corrected=True, groups=np.arange(400) % 40)
        isoscore(X)


# One row or group that dominates


def longer(X, row, factor):
    X = X.copy()
    X[row] *= factor
    return X


@pytest.mark.parametrize("measure", [isotropy_report, lambda X: isoscore(X, True)])
def test_one_row_that_is_much_longer_is_named_with_its_share(measure):
    X = cloud(300, 64) - 1
    with pytest.warns(UserWarning, match=r"row 17 holds \d+\.\d% of the squared"):
        measure(longer(X, 17, 12))
    with pytest.warns(UserWarning, match="row 22 holds"):  # behind copies
        measure(np.r_[X[[0] * 5], longer(X, 17, 12)])
    unit = X / np.linalg.norm(X, axis=1)[:, None]
    with pytest.warns(UserWarning, match="row 67 holds"):  # more than 5 % of different rows only
        measure(np.r_[unit[[0] * 50], longer(unit, 17, 4.05)])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*holds")
        measure(X)
    X[:3] *= 3
    names = np.r_[["text 5"] * 3, [f"text {i}" for i in range(6, 303)]]
    with pytest.warns(UserWarning, match=r"group 'text 5' holds"):
        isotropy_report(X, groups=names)


@pytest.mark.parametrize(("n", "share"), [(1000, 0.05), (50, 0.2)])
def test_the_share_that_dominates_is_five_percent_or_ten_times_an_average_one(n, share):
    X = np.random.default_rng(0).normal(size=(n, 300))
    X *= (1 / np.linalg.norm(X, axis=1))[:, None]
    for factor, warned in ((0.9, 0), (1.15, 1)):
        size = (factor * share * (n - 1) / (1 - factor * share)) ** 0.5
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            isoscore(longer(X, 3, size), True)
        assert len(caught) == warned


# Embeddings beyond memory; what the process holds is measured in tests/processes.


def test_a_report_of_blocks_is_that_of_the_matrix(tmp_path):
    X, labels = cloud(300), np.arange(300) % 2
    X[200:] = X[:100]
    whole = isotropy_report(X, labels=labels).to_dict()
    with small_blocks(chunks=40 * 16):
        for kind in (np.asarray, as_dask, lambda X: as_memmap(X, tmp_path)):
            found = isotropy_report(kind(X), labels=labels).to_dict()
            torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-12, equal_nan=True)
        X[250, 2] = np.nan
        with pytest.raises(ValueError, match="rows 240 to 279: Input X contains NaN"):
            isotropy_report(as_memmap(X, tmp_path))
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        isotropy_report((blocks := as_dask(X))[blocks[:, 0] > 0])


@small_blocks(chunks=2**14, sample=100)
def test_a_report_holds_a_small_part_of_the_rows(tmp_path):
    X = cloud(40_000).astype(np.float32)
    for given in (X, as_memmap(X, tmp_path)):
        tracemalloc.start()
        isotropy_report(given)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < X.nbytes  # hashes and masks of the rows, 58 bytes each, and blocks
