"""Displays: what is drawn is the data, on the Axes that were given."""

import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.model_selection import GridSearchCV

from tests.refusals import refusals

matplotlib = pytest.importorskip("matplotlib")
pyplot = pytest.importorskip("matplotlib.pyplot")

from matplotlib.cbook import is_math_text  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402

from isoadapt import Whitening  # noqa: E402
from isoadapt.model_selection import BestAboveFloor, Comparison  # noqa: E402
from isoadapt.report import (  # noqa: E402
    AnisotropyProfile,
    ComparisonDisplay,
    EmbeddingMapDisplay,
    SearchFrontDisplay,
    SpectrumDisplay,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 6)) @ np.diag([9, 5, 3, 1, 1, 1]) + 4
LABELS = RNG.integers(0, 3, 80)
NAMES = ["none", "A", "B", "C", "D", "E", "F"]


def is_grey(line):
    red, green, blue = to_rgb(line.get_color())
    return red == green == blue != 0


def row(use, adapter, kind, score, **changes):
    figures = {"use": use, "adapter": adapter, "kind": kind, "score": score, "metric": "accuracy"}
    figures |= {"ci_low": score - 0.1, "ci_high": score + 0.05, "difference": score - 0.5}
    figures |= {"difference_low": score - 0.55, "difference_high": score - 0.4}
    figures |= {"p_holm": 1.0, "control": "refit", "control_difference": score - 0.6}
    figures |= {"control_p_holm": 1.0, "keeps_predictions": False, "n_units": 9, "fit_seconds": 1.0}
    figures |= {"changed_predictions": 1, "n_predictions": 9}
    return figures | changes


NO_DIFFERENCE = dict.fromkeys(("difference", "difference_low", "difference_high"), math.nan)
ROWS = [
    line
    for use in ("classify", "similarity")
    for line in (
        row(use, "no adapter", "baseline", 0.5, **NO_DIFFERENCE),
        row(use, "refit", "control", 0.6, p_holm=0.01),
        row(use, "Good", "adapter", 0.9, p_holm=0.01, control_p_holm=0.01),
        row(use, "Explained", "adapter", 0.7, p_holm=0.01),
        row(use, "Better", "adapter", 0.95, p_holm=0.01, control_p_holm=0.01),
        row(use, "Unclear", "adapter", 0.55),
        row(use, "Worse", "adapter", 0.2, p_holm=0.01),
    )
]
EACH = len(ROWS) // 2
COMPARISON = Comparison(ROWS, "", {each["adapter"]: 1 for each in ROWS[2:EACH]}, [])


class TestSpectrum:
    def test_curves_are_the_eigenvalues_of_the_covariance(self):
        few = X[:4]  # fewer rows than columns
        display = SpectrumDisplay.from_embeddings({"all": X, "few": few})
        for label, points in (("all", X), ("few", few)):
            values = np.linalg.eigvalsh(np.cov(points.T))[::-1][: min(points.shape)]
            shares = values / values.sum()
            spectrum, cumulative = display.lines_[label]
            np.testing.assert_array_equal(spectrum.get_xdata(), np.arange(1, len(shares) + 1))
            np.testing.assert_allclose(spectrum.get_ydata(), shares, atol=1e-9)
            np.testing.assert_allclose(cumulative.get_ydata(), np.cumsum(shares), atol=1e-9)
            assert [spectrum.axes, cumulative.axes] == list(display.axes_)
        assert len(display.axes_[0].lines) == 2  # no line of equal shares for different sizes

    def test_adapters(self):
        adapter = Whitening(shrinkage=0.0).fit(X)
        display = SpectrumDisplay.from_estimator({"w": adapter}, X)
        assert list(display.shares) == ["no adapter", "w"]
        np.testing.assert_allclose(display.shares["w"], np.full(6, 1 / 6), rtol=1e-6)
        np.testing.assert_allclose(display.axes_[0].lines[-1].get_ydata(), np.full(6, 1 / 6))


class TestComparison:
    @pytest.mark.parametrize(
        ("quantity", "columns"),
        [
            ("score", ("score", "ci_low", "ci_high")),
            ("difference", ("difference", "difference_low", "difference_high")),
        ],
    )
    def test_points_and_intervals_are_the_table(self, quantity, columns):
        display = ComparisonDisplay.from_comparison(COMPARISON, quantity=quantity)
        assert [axes.get_title() for axes in display.axes_] == ["classify", "similarity"]
        labels = [text.get_text() for text in display.axes_[0].get_yticklabels()]
        assert labels == [each["adapter"] for each in ROWS[:EACH]]
        assert set(display.containers_) == {(each["use"], each["adapter"]) for each in ROWS}
        for i, each in enumerate(ROWS):
            point, _, bars = display.containers_[each["use"], each["adapter"]]
            value, low, high = (each[name] for name in columns)
            value = 0 if math.isnan(value) else value
            np.testing.assert_allclose(point.get_xydata(), [[value, i % EACH]])
            assert point.axes is display.axes_[i // EACH]
            if math.isnan(low):
                assert not bars
            else:
                [segment] = bars[0].get_segments()
                np.testing.assert_allclose(segment[:, 0], [low, high])
        low, high = display.axes_[0].get_ylim()
        assert low > high  # the first row is at the top

    def test_a_row_that_was_not_measured(self):
        failed = ROWS[2] | NO_DIFFERENCE | dict.fromkeys(("score", "ci_low", "ci_high"), math.nan)
        made = Comparison([*ROWS[:2], failed], "", {}, [])
        for quantity in ("score", "difference"):
            drawn = ComparisonDisplay.from_comparison(made, quantity=quantity).containers_
            points = [each[0].get_xdata()[0] for each in drawn.values()]
            assert [math.isnan(x) for x in points] == [False, False, True]

    def test_baseline_controls_and_findings_differ(self):
        display = ComparisonDisplay.from_comparison(COMPARISON, uses=["similarity"])
        [axes] = display.axes_
        raw = next(line for line in axes.lines if line.get_linestyle() == "--")
        np.testing.assert_allclose(raw.get_xdata(), 0.5)
        points = {name: each[0] for (_, name), each in display.containers_.items()}
        faces = {name: to_rgb(each.get_markerfacecolor()) for name, each in points.items()}
        filled = {name for name, face in faces.items() if face != to_rgb("white")}
        assert filled == {"no adapter", "Good", "Better", "Worse"}
        assert "".join(each.get_marker() for each in points.values()) == "Ds>>>o<"
        assert is_grey(points["refit"])
        assert points["Good"].get_color() == points["Explained"].get_color()
        assert len({points[name].get_color() for name in ("Good", "Unclear", "Worse")}) == 3
        assert len(axes.get_legend().get_texts()) == 6


score = st.one_of(st.just(math.nan), st.integers(0, 4).map(float))
scores = st.lists(st.tuples(score, score), min_size=1)


def fitted(isotropy, task, params, chosen=1):
    """What the display reads of a fitted search."""
    results = {"params": params}
    for name, values in (("isoscore", isotropy), ("accuracy", task)):
        results |= {f"mean_test_{name}": np.array(values)}
        results |= {f"std_test_{name}": np.full(len(values), 0.1)}
    rule = BestAboveFloor("accuracy", "isoscore", floor=0.3)
    made = GridSearchCV(Whitening(), {}, refit=rule)
    made.cv_results_, made.best_index_ = results, chosen
    return made


@pytest.fixture
def search():
    return fitted([0.2, 0.5, 0.9], [0.8, 0.85, 0.7], [{"strength": s} for s in (0.0, 0.5, 1.0)])


class TestSearchFront:
    @settings(max_examples=40, derandomize=True)
    @given(scores)
    def test_pareto_set_is_what_no_candidate_dominates(self, pairs):
        isotropy, task = np.array(pairs).T
        scored = np.flatnonzero(~np.isnan(isotropy + task))
        display = SearchFrontDisplay(fitted(isotropy, task, [{}] * len(task)))
        x, y = isotropy[scored], task[scored]
        worse = (x[:, None] <= x) & (y[:, None] <= y) & ((x[:, None] < x) | (y[:, None] < y))
        expected = {*scored[~worse.any(axis=1)]}
        assert set(display.pareto_) == expected
        assert len(display.pareto_) == len(expected)
        assert (np.diff(isotropy[display.pareto_]) >= 0).all()
        assert (np.diff(task[display.pareto_]) <= 0).all()

    def test_what_is_drawn_is_the_search(self, search):
        display = SearchFrontDisplay.from_estimator(search)
        x, y = (search.cv_results_[f"mean_test_{name}"] for name in ("isoscore", "accuracy"))
        np.testing.assert_array_equal(display.candidates_.get_offsets(), np.c_[x, y])
        np.testing.assert_array_equal(display.pareto_, [1, 2])
        np.testing.assert_array_equal(display.front_.get_xydata(), np.c_[x, y][1:])
        np.testing.assert_array_equal(display.floor_.get_xdata(), [0.3, 0.3])
        np.testing.assert_array_equal(display.chosen_.get_xydata(), [[0.5, 0.85]])
        assert "strength=0.5" in display.chosen_.get_label()
        assert display.ax_.get_xlabel() == "isoscore (greater is better)"
        assert display.ax_.get_ylabel() == "accuracy (greater is better)"
        assert display.unpenalised_ is None

    def test_without_the_rule_the_scores_are_named(self, search):
        search.refit = False
        del search.best_index_
        with pytest.raises(ValueError, match=r"isotropy=.*'isoscore'"):
            SearchFrontDisplay.from_estimator(search, task="accuracy", isotropy="isocore")
        display = SearchFrontDisplay.from_estimator(search, task="accuracy", isotropy="isoscore")
        assert display.floor_ is None
        assert display.chosen_ is None

    def test_candidates_without_penalty_are_marked(self):
        params = [{"a__lam": lam, "a__zeta": 0} for lam in (0, 1, 0.0, 0.5)]
        found = fitted([0.1, 0.5, math.nan, 0.6], [0.9, 0.8, 0.7, 0.6], params)
        marked = SearchFrontDisplay.from_estimator(found).unpenalised_.get_xydata()
        np.testing.assert_array_equal(marked, [[0.1, 0.9], [math.nan, 0.7]])

    def test_labels_do_not_overlap(self):
        isotropy = np.linspace(0, 1, 60)
        params = [{"lam": k, "of": "a long name"} for k in range(60)]
        found = fitted(isotropy, 1 - isotropy, params, chosen=31)
        display = SearchFrontDisplay.from_estimator(found)
        assert len(display.pareto_) == 60
        texts = {text.get_text(): text for text in display.ax_.texts}
        assert "lam=31, of=a long name" in texts
        assert len(texts) > 5
        display.figure_.canvas.draw()
        boxes = [text.get_window_extent() for text in texts.values()]
        assert all(sum(box.overlaps(other) for other in boxes) == 1 for box in boxes)


TRAINED = ("isoscore_star", "anisotropy1", "anisotropy1_centered", "ev1", "task_loss", "penalty")
LOG = [
    {"shrinkage_seconds": 0.1, "step": 0},
    *(
        {"step": 5 * k, "loss": 1.0, **{name: k / (i + 4) for i, name in enumerate(TRAINED)}}
        for k in (1, 2, 3)
    ),
    {"eval_loss": 0.3, "step": 15},
    {"train_runtime": 1.0, "train_loss": 0.5, "step": 15},
]


class TestAnisotropyProfile:
    def test_lines_are_the_log(self, tmp_path):
        (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": LOG}))
        trainer = SimpleNamespace(state=SimpleNamespace(log_history=LOG))
        trained = AnisotropyProfile.from_trainer(trainer)
        for display in (trained, AnisotropyProfile.from_checkpoint(tmp_path)):
            np.testing.assert_array_equal(display.steps, [5, 10, 15])
            assert set(display.figures) == set(display.lines_) == set(TRAINED)
            for i, name in enumerate(TRAINED):
                np.testing.assert_allclose(display.figures[name], np.array([1, 2, 3]) / (i + 4))
                if name != "ev1":
                    shown = display.lines_[name].get_xydata().T
                    np.testing.assert_array_equal(shown, [[5, 10, 15], display.figures[name]])
            assert display.axes_[0].get_ylim() == (0, pytest.approx(1.2 * 3 / 4))
            assert [len(axes.lines) for axes in display.axes_] == [3, 2]
            assert display.lines_["ev1"] is display.lines_["anisotropy1_centered"]

    def test_what_is_missing_is_left_out_or_a_gap(self):
        log = [
            {"step": 1, "task_loss": 1.0, "penalty": 2.0, "isoscore_star": 0.5},
            {"step": 2, "task_loss": 0.9, "penalty": 2.0},
        ]
        display = AnisotropyProfile(log).plot()
        assert list(display.lines_) == ["isoscore_star", "task_loss", "penalty"]
        np.testing.assert_array_equal(display.lines_["isoscore_star"].get_ydata(), [0.5, np.nan])


class TestEmbeddingMap:
    def test_each_panel_is_the_principal_plane_of_its_set(self):
        Z = X @ RNG.normal(size=(6, 3))  # another number of columns
        display = EmbeddingMapDisplay.from_embeddings(X, Z, LABELS)
        for number, points in enumerate((X, Z)):
            values, vectors = np.linalg.eigh(np.cov(points.T, bias=True))
            plane = (points - points.mean(0)) @ vectors[:, :-3:-1] / np.sqrt(values[-1])
            found, share = (display.before, display.after)[number], display.shares[number]
            np.testing.assert_allclose(found, plane * np.sign((plane * found).sum(0)), atol=1e-9)
            assert share == pytest.approx(values[-2:].sum() / values.sum())
            assert f"{100 * share:.3g} %" in display.axes_[number].get_title()

    def test_both_panels_have_one_scale_and_a_round_cloud_is_round(self):
        flat = RNG.normal(size=(2000, 5)) @ np.diag([30, 1, 1, 1, 1])
        display = EmbeddingMapDisplay.from_estimator(Whitening().fit(flat[:1000]), flat[1000:])
        [limits] = {(*axes.get_xlim(), *axes.get_ylim()) for axes in display.axes_}
        assert limits[:2] == limits[2:]
        assert [axes.get_aspect() for axes in display.axes_] == [1, 1]
        both = np.vstack([display.before, display.after])
        assert limits[0] < both.min() < both.max() < limits[1]
        assert display.before.std(axis=0)[1] < 0.05
        assert display.after.std(axis=0)[1] > 0.9

    def test_scale_and_shift_of_either_set_change_nothing(self):
        Z = X @ RNG.normal(size=(6, 6))
        one = EmbeddingMapDisplay.from_embeddings(X, Z)
        far = X + 1e7  # as vectors with a common direction
        other = EmbeddingMapDisplay.from_embeddings(far, Z / 7 - 1)
        np.testing.assert_allclose(other.before, one.before, atol=1e-7)
        np.testing.assert_allclose(other.after, one.after, atol=1e-7)
        np.testing.assert_allclose(other.shares, one.shares)

    def test_points_by_class(self):
        display = EmbeddingMapDisplay.from_estimator(Whitening().fit(X), X, LABELS)
        assert set(display.points_) == {(p, c) for p in ("before", "after") for c in "012"}
        for (panel, name), drawn in display.points_.items():
            coordinates = getattr(display, panel)[name == LABELS.astype(str)]
            np.testing.assert_array_equal(drawn.get_offsets(), coordinates)
        plain = EmbeddingMapDisplay.from_embeddings(X, X)
        assert set(plain.points_) == {("before", ""), ("after", "")}

    def test_many_classes_share_grey(self):
        y = np.r_[np.repeat(np.arange(9), 8), 9, 10, 11, 12, 13, 14, 15, 16]
        display = EmbeddingMapDisplay.from_embeddings(X, X, y)
        names = {name for _, name in display.points_}
        assert names == {*map(str, range(9)), "other classes"}
        assert len(display.points_["before", "other classes"].get_offsets()) == 8


def test_names_are_shown_as_they_are():
    names = ["$5 to $10", "$_{$", "_hidden"]
    sets = {"no adapter": X} | dict.fromkeys(names, X * 2)
    params = [{"a": name} for name in names]
    for display in (
        SpectrumDisplay.from_embeddings(sets),
        SearchFrontDisplay.from_estimator(fitted(np.arange(3), -np.arange(3), params, chosen=0)),
        EmbeddingMapDisplay.from_embeddings(X, X, np.array(names)[np.arange(80) % 3]),
    ):
        display.figure_.canvas.draw()
        texts = [text.get_text() for text in display.figure_.findobj(matplotlib.text.Text)]
        for name in names:
            found = [text for text in texts if name in text.replace(r"\$", "$")]
            assert found
            assert not any(map(is_math_text, found))


test_what_cannot_be_drawn_is_named = refusals(
    (lambda: AnisotropyProfile([{"step": 5, "loss": 1.0}]), "log_history"),
    (lambda: ComparisonDisplay(COMPARISON, quantity="diff"), "quantity='diff'.*'difference'"),
    (lambda: EmbeddingMapDisplay.from_embeddings(X, X[1:]), "inconsistent numbers"),
    (lambda: EmbeddingMapDisplay.from_embeddings(X, X * 0), "Z has 80 equal rows"),
    (lambda: EmbeddingMapDisplay.from_embeddings(X, X, X[:, 0]), "y has continuous values"),
)


FRONT = SearchFrontDisplay(fitted([0.1, 0.5], [0.9, 0.8], [{}, {}]))
DRAWN = {
    "SpectrumDisplay": (lambda ax: SpectrumDisplay.from_embeddings(X, ax=ax), 2),
    "ComparisonDisplay": (lambda ax: ComparisonDisplay.from_comparison(COMPARISON, ax=ax), 2),
    "SearchFrontDisplay": (lambda ax: FRONT.plot(ax=ax), 1),
    "EmbeddingMapDisplay": (lambda ax: EmbeddingMapDisplay.from_embeddings(X, X, ax=ax), 2),
    "AnisotropyProfile": (lambda ax: AnisotropyProfile(LOG).plot(ax=ax), 2),
}


class TestHabits:
    def test_what_is_drawn_stands_out_from_a_dark_background(self):
        with pyplot.style.context("dark_background"):
            figures = [draw(None).figure_ for draw, _ in DRAWN.values()]
        for axes in [axes for figure in figures for axes in figure.axes]:
            drawn = [line.get_color() for line in axes.lines]
            for marks in axes.collections:
                faces = marks.get_facecolor()
                drawn += [(faces if len(faces) else marks.get_edgecolor())[0, :3]]
            background = np.array(to_rgb(axes.get_facecolor()))
            for colour in drawn:
                assert np.abs(to_rgb(colour) - background).max() > 0.2

    @pytest.mark.parametrize("name", DRAWN)
    def test_own_axes_and_nothing_global(self, name, monkeypatch):
        draw, n_panels = DRAWN[name]
        before, open_before = dict(matplotlib.rcParams), pyplot.get_fignums()
        figure = matplotlib.figure.Figure()
        axes = figure.subplots(1, n_panels)
        display = draw(axes)
        assert display.figure_ is figure
        assert list(display.axes_ if n_panels > 1 else [display.ax_]) == list(np.ravel(axes))
        assert pyplot.get_fignums() == open_before
        assert dict(matplotlib.rcParams) == before
        assert display.plot() is display
        assert display.figure_ is not figure  # a new one
        with pytest.raises(ValueError, match=rf"ax=.*{name}.*[1{n_panels}] matplotlib Axes"):
            draw(matplotlib.figure.Figure().subplots(1, 3))
        monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
        with pytest.raises(ImportError, match=rf"{name} needs matplotlib.*isoadapt\[plot\]"):
            draw(None)
