"""Copies of rows, groups of dependent rows, rows that dominate, and embeddings beyond memory."""

import subprocess
import sys
import tracemalloc
import warnings

import numpy as np
import pytest
import torch

from isoadapt.geometry import Moments, _chunks, _isoscore
from isoadapt.metrics import _isotropy_report, isoscore, isotropy_report

pytestmark = pytest.mark.filterwarnings("ignore:.*3 × n_features")


def cloud(n, d=16, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * np.linspace(1, 3, d) + 1


def as_dask(X, rows=37):
    return pytest.importorskip("dask.array").from_array(X, chunks=(rows, X.shape[1]))


def as_memmap(X, folder):
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


def as_iterator(X):
    return iter(np.array_split(X, 7))


# Copies


@pytest.fixture
def copied():
    """Rows, and the same rows ten times in another order."""
    X = cloud(60)
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(60), 10))
    return X, X[order]


def test_copies_of_rows_count_once_in_the_corrected_score(copied, tmp_path):
    X, copies = copied
    once = isoscore(X, bias_corrected=True)
    for kind in (as_dask, as_iterator, np.asarray, torch.tensor, lambda X: as_memmap(X, tmp_path)):
        assert isoscore(kind(copies), bias_corrected=True) == pytest.approx(once, rel=1e-12)
    report = isotropy_report(copies)
    assert report.isoscore_corrected == pytest.approx(once, rel=1e-12)
    assert report.n_samples == 600
    repeated = isoscore(Moments().update(X, np.full(60, 10.0)))
    for plain in (report.isoscore, isoscore(copies)):
        assert plain == pytest.approx(repeated, rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(60, 16), (12, 40)])
def test_rows_without_copies_keep_their_score_to_the_last_bit(shape, dtype):
    X = cloud(*shape).astype(dtype)
    points = torch.tensor(X, dtype=torch.float64)
    assert isoscore(X, True) == float(_isoscore.isoscore_star(points, bias_corrected=True))
    moments = Moments()
    for chunk in as_iterator(X):
        moments.update(chunk)
    assert isoscore(as_iterator(X), True) == isoscore(moments, True)


def test_fewer_than_four_different_rows_have_no_corrected_score():
    X = np.repeat(cloud(3), 5, axis=0)
    with pytest.raises(ValueError, match=r"3 different row\(s\), while at least 4 are required"):
        isoscore(X, bias_corrected=True)
    with pytest.raises(ValueError, match=r"3 different row\(s\) in all its chunks"):
        isoscore(as_iterator(X), bias_corrected=True)
    assert np.isnan(isotropy_report(X).isoscore_corrected)


@pytest.mark.filterwarnings("default:.*3 × n_features")
def test_the_warning_of_few_rows_counts_different_rows_or_groups(copied):
    _, copies = copied
    message = r"n_samples=48 \(40 different\) is less than 48 = 3 × n_features"
    with pytest.warns(UserWarning, match=message):
        isotropy_report(np.r_[copies[:0], cloud(40), cloud(8)])
    with pytest.warns(UserWarning, match="number of different groups, 20, is less than 48"):
        isotropy_report(cloud(60), groups=np.arange(60) % 20)


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
    found = np.array([isoscore(*each, groups=g) for *each, g in ((X, True, g) for X, g in draws)])
    assert abs(found.mean() - truth) < 0.05
    assert np.mean([isoscore(X, True) for X, _ in draws]) < truth - 0.15


@pytest.mark.parametrize("shape", [(90, 16), (30, 40)])
def test_every_container_gives_the_score_of_the_groups(shape, tmp_path):
    X = cloud(*shape)
    groups = np.array([f"document {i}" for i in np.random.default_rng(0).integers(0, 9, len(X))])
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
    assert isoscore(X, groups=groups) == isoscore(X)


def test_groups_of_equal_rows_count_once():
    X, groups = tokens(20)
    twice = np.r_[X, X[::-1]], np.r_[groups, 100 + groups[::-1]]
    score = isoscore(X, True, groups)
    assert isoscore(twice[0], True, twice[1]) == pytest.approx(score, rel=1e-12)
    assert isoscore(X, True, np.arange(len(X))) == pytest.approx(isoscore(X, True), rel=1e-12)


def test_too_few_groups_are_refused_with_the_way_out():
    X = cloud(60)
    for measure in (isotropy_report, lambda X, groups: isoscore(X, True, groups)):
        with pytest.raises(ValueError, match=r"groups has 3 different.*at least 4.*as labels="):
            measure(X, groups=np.arange(60) % 3)
        with pytest.raises(ValueError, match=r"groups has shape \(59,\), X has 60 rows"):
            measure(X, groups=np.arange(59))
    with pytest.raises(TypeError, match="this figure needs all rows at once"):
        isoscore(as_iterator(X), True, np.arange(60))


def test_labels_are_reported_with_the_groups_of_their_rows():
    X, groups = tokens(20)
    labels = np.where(groups < 8, "first", np.where(groups < 11, "few", "rest"))
    report = isotropy_report(X, groups=groups, labels=labels)
    assert report.isoscore_corrected == isotropy_report(X, groups=groups).isoscore_corrected
    for name in ("first", "rest"):
        own = labels == name
        expected = isoscore(X[own], True, groups[own])
        assert report.labels[name].isoscore_corrected == pytest.approx(expected, rel=1e-12)
    assert np.isnan(report.labels["few"].isoscore_corrected)


def test_equal_groups_count_in_the_report_of_each_label():
    X, groups = tokens(20)
    labels = np.repeat(["first", "second"], len(X))
    report = isotropy_report(np.r_[X, X], groups=np.r_[groups, 100 + groups], labels=labels)
    score = isoscore(X, True, groups)
    for own in report.labels.values():
        assert own.isoscore_corrected == pytest.approx(score, rel=1e-12)


@pytest.mark.filterwarnings("default:.*3 × n_features")
def test_the_warning_of_labels_with_few_rows_counts_different_rows_or_groups():
    X, labels = cloud(400), np.repeat(["copies", "rest"], 200)
    X[:200] = X[np.arange(200) % 30]
    with pytest.warns(UserWarning, match=r"1 of 2 labels have fewer rows than .*copies \(30\)"):
        isotropy_report(X, labels=labels)
    groups = np.r_[np.arange(200) % 20, 20 + np.arange(200)]
    with pytest.warns(UserWarning, match=r"1 of 2 labels have fewer groups than .*copies \(20\)"):
        isotropy_report(cloud(400), groups=groups, labels=labels)


def test_groups_may_be_tensors_but_not_of_several_types():
    X = cloud(60)
    groups = np.arange(60) % 9
    score = isoscore(X, True, groups)
    for kind in (torch.float32, torch.bfloat16):
        as_tensor = torch.tensor(groups, dtype=kind, requires_grad=True)
        assert isoscore(X, True, as_tensor) == score
    for name in ("groups", "labels"):
        message = rf"{name} holds values of several types.*pass list\(map\(str, values\)\)"
        with pytest.raises(TypeError, match=message):
            isotropy_report(X, **{name: np.array([1, "a"] * 30, dtype=object)})


# One row or group that dominates


def longer(X, row, factor):
    X = X.copy()
    X[row] *= factor
    return X


@pytest.mark.parametrize("measure", [isotropy_report, lambda X: isoscore(X, True)])
def test_one_row_that_is_much_longer_is_named_with_its_share(measure, shared):
    X = np.load(shared / "embeddings" / "cola.npz")["E_dev"].astype(np.float64)
    X -= X.mean(0)
    with pytest.warns(UserWarning, match=r"row 17 holds \d+\.\d% of the squared.*leave it out"):
        measure(longer(X, 17, 12))
    with pytest.warns(UserWarning, match="row 22 holds"):  # behind copies
        measure(np.r_[X[[0] * 5], longer(X, 17, 12)])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*holds")
        measure(X)


def test_the_share_that_dominates_is_five_percent_or_ten_times_an_average_one():
    for n, share in ((1000, 0.05), (50, 0.2)):
        X = np.random.default_rng(0).normal(size=(n, 300))
        X *= (1 / np.linalg.norm(X, axis=1))[:, None]
        for factor, warned in ((0.9, 0), (1.15, 1)):
            size = (factor * share * (n - 1) / (1 - factor * share)) ** 0.5
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                isoscore(longer(X, 3, size), True)
            assert len(caught) == warned


def test_one_group_that_dominates_is_named():
    X, groups = tokens(300, n_tokens=3)
    names = np.array([f"text {i}" for i in groups])
    X[names == "text 5"] *= 5
    for measure in (isotropy_report, lambda X, groups: isoscore(X, True, groups)):
        with pytest.warns(UserWarning, match=r"group 'text 5' holds \d+\.\d% of the squared"):
            measure(X, groups=names)


# Embeddings beyond memory


def test_a_report_of_blocks_is_that_of_the_matrix(tmp_path, monkeypatch):
    X = cloud(300)
    X[200:] = X[:100]
    labels = np.arange(300) % 2
    whole = isotropy_report(X, labels=labels)
    monkeypatch.setattr(_chunks, "_READ", 40 * 16)
    for kind in (np.asarray, as_dask, lambda X: as_memmap(X, tmp_path)):
        assert_equal(isotropy_report(kind(X), labels=labels).to_dict(), whole.to_dict())


def assert_equal(found, wanted):
    for name, value in wanted.items():
        if isinstance(value, dict):
            assert_equal(found[name], value)
        else:
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


def test_a_bad_block_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(_chunks, "_READ", 100 * 16)
    X = cloud(300)
    X[250, 2] = np.nan
    with pytest.raises(ValueError, match="rows 200 to 299: Input X contains NaN"):
        isotropy_report(as_memmap(X, tmp_path))
    blocks = as_dask(cloud(300))
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        isotropy_report(blocks[blocks[:, 0] > 0])
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        isotropy_report(blocks[:, 0])


def test_figures_of_neighbours_come_from_a_sample_that_the_report_names(monkeypatch):
    X = cloud(400)
    assert isotropy_report(X).n_sampled == 400
    assert "drawn" not in str(isotropy_report(X))
    monkeypatch.setattr(_isotropy_report, "_SAMPLED", 100)
    report = isotropy_report(X)
    assert report.n_sampled == 100
    assert report == isotropy_report(X)
    assert str(report).count("on 100 rows drawn with seed 0") == 3


@pytest.mark.parametrize("mapped", [True, False])
def test_a_report_holds_a_small_part_of_the_rows(mapped, tmp_path, monkeypatch):
    monkeypatch.setattr(_chunks, "_READ", 2**16)
    monkeypatch.setattr(_isotropy_report, "_SAMPLED", 500)
    X = cloud(150_000).astype(np.float32)
    given = as_memmap(X, tmp_path) if mapped else X
    tracemalloc.start()
    isotropy_report(given)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < X.nbytes  # hashes and masks of the rows, 58 bytes each, and blocks


MEASURE = """
import sys, threading, time
import numpy as np
from isoadapt import TeacherReadout, Whitening
from isoadapt.metrics import isotropy_report

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))

X = np.load(sys.argv[1], mmap_mode="r")
calls = {
    "report": lambda: isotropy_report(X),
    "fit": lambda: Whitening().fit(X),
    "readout": lambda: TeacherReadout().fit(X, X[:, :32]),
}
before, seen = resident(), []

def watch():
    while True:
        seen.append(resident())
        time.sleep(0.005)

threading.Thread(target=watch, daemon=True).start()
calls[sys.argv[2]]()
print(max(seen) - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("call", ["report", "fit", "readout"])
def test_memory_of_the_process_does_not_grow_with_the_rows(call, tmp_path):
    """Neither by pages of the file, nor by freed memory that is kept, unseen by tracemalloc."""
    np.save(tmp_path / "X.npy", cloud(1_000_000, 64).astype(np.float32))
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "X.npy"), call]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(found.stdout.split()[-1]) < 200  # MB; X has 256
