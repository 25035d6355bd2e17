"""Displays: what is drawn is the data, on the Axes that were given."""

import math
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

matplotlib = pytest.importorskip("matplotlib")
pyplot = pytest.importorskip("matplotlib.pyplot")

from matplotlib.colors import to_hex, to_rgb  # noqa: E402

from isoadapt import LogitPreservingWhitening, Whitening  # noqa: E402
from isoadapt.model_selection import (  # noqa: E402
    BestAboveFloor,
    Comparison,
    compare_adapters,
    make_isotropy_scorer,
)
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
    return figures | {"control_p_holm": 1.0} | changes


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
    )
]
COMPARISON = Comparison(ROWS, "", {"Good": 1, "Explained": 2, "Better": 3}, [])


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
            assert spectrum.axes is display.axes_[0]
            assert cumulative.axes is display.axes_[1]
        assert len(display.axes_[0].lines) == 2  # no line of equal shares for different sizes
        display.figure_.canvas.draw()

    @pytest.mark.parametrize(
        ("options", "coloured"),
        [
            ({}, ["A", "B", "C", "D"]),
            ({"highlight": ["F", "C"]}, ["F", "C"]),
            ({"highlight": []}, []),
        ],
    )
    def test_few_colours_and_the_baseline_black(self, options, coloured):
        sets = {name: X * (1 + i * np.eye(6)[0]) for i, name in enumerate(NAMES)}
        display = SpectrumDisplay.from_embeddings(sets, **options)
        assert set(display.lines_) == set(NAMES)
        assert to_hex(display.lines_["none"][0].get_color()) == "#000000"
        grey = {name for name in NAMES if is_grey(display.lines_[name][0])}
        assert grey == set(NAMES) - {"none", *coloured}
        colours = [display.lines_[name][0].get_color() for name in coloured]
        assert len(set(colours)) == len(coloured)
        entries = [text.get_text() for text in display.axes_[1].get_legend().get_texts()]
        assert entries[: 1 + len(coloured)] == ["none", *coloured]
        assert all(name in entries[1 + len(coloured)] for name in grey)
        order = [display.lines_[name][0].get_zorder() for name in ("none", *coloured, *grey)]
        assert order == sorted(order, reverse=True)

    @pytest.mark.parametrize("kind", [SpectrumDisplay, EmbeddingMapDisplay])
    def test_rows_of_the_fit_are_named_in_a_title(self, kind):
        adapter = Whitening().fit(X[:50])
        for rows, named in ((X, True), (X[50:], False)):
            titles = [axes.get_title() for axes in kind.from_estimator(adapter, rows).axes_]
            assert ("rows the map was fitted to" in "".join(titles)) == named

    def test_adapters(self):
        adapter = Whitening(shrinkage=0.0).fit(X)
        display = SpectrumDisplay.from_estimator({"w": adapter}, X)
        assert list(display.shares) == ["no adapter", "w"]
        assert display.baseline == "no adapter"
        np.testing.assert_allclose(display.shares["w"], np.full(6, 1 / 6), rtol=1e-6)
        single = SpectrumDisplay.from_estimator(adapter, X)
        np.testing.assert_array_equal(single.shares["Whitening"], display.shares["w"])
        equal = display.axes_[0].lines[-1]
        np.testing.assert_allclose(equal.get_ydata(), np.full(6, 1 / 6))

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: SpectrumDisplay({}), "shares is empty"),
            (lambda: SpectrumDisplay({"a": [0.4, 0.6]}), r"shares\['a'\] must be shares"),
            (lambda: SpectrumDisplay({"a": [0.9, 0.2]}), r"shares\['a'\] must be shares"),
            (lambda: SpectrumDisplay({"alpha": [1.0]}, baseline="alpa"), "did you mean 'alpha'"),
            (lambda: SpectrumDisplay({"a": [1.0]}, highlight=["b"]), "highlight: there is no set"),
            (lambda: SpectrumDisplay({"a": [1.0]}, highlight=["a"]), "or the baseline 'a'"),
            (
                lambda: SpectrumDisplay({name: [1.0] for name in NAMES}, highlight=NAMES[1:]),
                "highlight has 6 labels; name at most 4",
            ),
            (lambda: SpectrumDisplay.from_embeddings({"a": X[:1]}), r"embeddings\['a'\]|1 sample"),
            (lambda: SpectrumDisplay.from_embeddings(X * math.nan), "contains NaN"),
            (lambda: SpectrumDisplay.from_embeddings(np.ones((5, 2))), "5 equal rows"),
            (
                lambda: SpectrumDisplay.from_estimator({"no adapter": Whitening().fit(X)}, X),
                "baseline='no adapter' is also the label",
            ),
        ],
    )
    def test_errors(self, call, message):
        with pytest.raises(ValueError, match=message):
            call()


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
        assert labels == [each["adapter"] for each in ROWS[:5]]
        assert set(display.containers_) == {(each["use"], each["adapter"]) for each in ROWS}
        for i, each in enumerate(ROWS):
            point, _, bars = display.containers_[each["use"], each["adapter"]]
            value, low, high = (each[name] for name in columns)
            value = 0 if math.isnan(value) else value
            np.testing.assert_allclose(point.get_xydata(), [[value, i % 5]])
            assert point.axes is display.axes_[i // 5]
            if math.isnan(low):
                assert not bars
            else:
                [segment] = bars[0].get_segments()
                np.testing.assert_allclose(segment[:, 0], [low, high])
        low, high = display.axes_[0].get_ylim()
        assert low > high  # the first row is at the top
        display.figure_.canvas.draw()

    def test_baseline_controls_and_gains_differ(self):
        display = ComparisonDisplay.from_comparison(COMPARISON, uses=["similarity"])
        [axes] = display.axes_
        raw = next(line for line in axes.lines if line.get_linestyle() == "--")
        np.testing.assert_allclose(raw.get_xdata(), 0.5)
        points = {name: each[0] for (_, name), each in display.containers_.items()}
        filled = {name for name, each in points.items() if each.get_markerfacecolor() != "white"}
        assert filled == {"no adapter", "Good", "Better"}
        assert points["refit"].get_marker() == "s"
        assert is_grey(points["refit"])
        entries = [text.get_text() for text in axes.get_legend().get_texts()]
        assert entries == ["no adapter", "control", "adapter, no gain shown", "adapter, gain shown"]

    def test_a_real_comparison(self):
        features, y = make_classification(200, 6, random_state=0)
        made = compare_adapters(features, y, ["Whitening"], encoder_saw=False, random_state=0, cv=3)
        display = ComparisonDisplay.from_comparison(made)
        assert [axes.get_title() for axes in display.axes_] == made.uses
        assert len(display.containers_) == len(made.rows)

    def test_errors(self):
        with pytest.raises(ValueError, match=r"quantity='diff' is unknown.*'difference'"):
            ComparisonDisplay(COMPARISON, quantity="diff")
        with pytest.raises(ValueError, match="use='search' is not in this comparison"):
            ComparisonDisplay(COMPARISON, uses=["search"])
        with pytest.raises(ValueError, match="uses is empty"):
            ComparisonDisplay(COMPARISON, uses=[])
        with pytest.raises(TypeError, match="comparison is a NoneType; pass the Comparison"):
            ComparisonDisplay.from_comparison(None)


def dominated(i, isotropy, task):
    return any(
        isotropy[j] >= isotropy[i]
        and task[j] >= task[i]
        and (isotropy[j] > isotropy[i] or task[j] > task[i])
        for j in range(len(task))
    )


scores = st.lists(
    st.tuples(*[st.one_of(st.just(math.nan), st.integers(0, 4).map(float))] * 2), min_size=1
)


@pytest.fixture(scope="module")
def search():
    features, y = make_classification(200, 6, n_informative=4, random_state=0)
    return GridSearchCV(
        LogitPreservingWhitening("logistic"),
        {"strength": [0.0, 0.5, 1.0]},
        scoring={"accuracy": "accuracy", "isoscore": make_isotropy_scorer("isoscore")},
        refit=BestAboveFloor("accuracy", "isoscore", floor=0.3),
        cv=3,
    ).fit(features, y)


class TestSearchFront:
    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(scores)
    def test_pareto_set_is_what_no_candidate_dominates(self, pairs):
        isotropy, task = np.array(pairs).T
        scored = np.flatnonzero(~np.isnan(isotropy + task))
        if not len(scored):
            with pytest.raises(ValueError, match="no candidate has both scores"):
                SearchFrontDisplay(isotropy, task, [{}] * len(task))
            return
        display = SearchFrontDisplay(isotropy, task, [{}] * len(task))
        expected = {
            scored[i]
            for i in range(len(scored))
            if not dominated(i, isotropy[scored], task[scored])
        }
        assert set(display.pareto_) == expected
        assert len(display.pareto_) == len(expected)
        assert (np.diff(isotropy[display.pareto_]) >= 0).all()
        assert (np.diff(task[display.pareto_]) <= 0).all()

    def test_what_is_drawn_is_the_search(self, search):
        display = SearchFrontDisplay.from_estimator(search)
        x = search.cv_results_["mean_test_isoscore"]
        y = search.cv_results_["mean_test_accuracy"]
        np.testing.assert_array_equal(display.candidates_.get_offsets(), np.c_[x, y])
        np.testing.assert_array_equal(display.front_.get_xydata(), np.c_[x, y][display.pareto_])
        np.testing.assert_array_equal(display.floor_.get_xdata(), [0.3, 0.3])
        best = search.best_index_
        np.testing.assert_array_equal(display.chosen_.get_xydata(), [[x[best], y[best]]])
        assert "strength=1" in display.chosen_.get_label()
        assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("isoscore", "accuracy")
        display.figure_.canvas.draw()

    def test_without_the_rule_the_scores_are_named(self, search):
        other = GridSearchCV(search.estimator, search.param_grid, refit=False)
        other.cv_results_ = search.cv_results_
        with pytest.raises(ValueError, match="task=None needs a search with refit=BestAboveFloor"):
            SearchFrontDisplay.from_estimator(other)
        with pytest.raises(ValueError, match=r"isotropy='isocore' is not a score.*'isoscore'"):
            SearchFrontDisplay.from_estimator(other, task="accuracy", isotropy="isocore")
        display = SearchFrontDisplay.from_estimator(other, task="accuracy", isotropy="isoscore")
        assert display.floor_ is None
        assert display.chosen_ is None
        with pytest.raises(NotFittedError):
            SearchFrontDisplay.from_estimator(GridSearchCV(Whitening(), {}))

    def test_lengths(self):
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            SearchFrontDisplay([1.0], [1.0, 2.0], [{}])
        with pytest.raises(ValueError, match="chosen=1 must be None or the index of one of the 1"):
            SearchFrontDisplay([1.0], [1.0], [{}], chosen=1)

    def test_labels_do_not_overlap(self):
        isotropy, params = np.linspace(0, 1, 60), [{"lam": k} for k in range(60)]
        display = SearchFrontDisplay(isotropy, 1 - isotropy, params, chosen=31).plot()
        assert len(display.pareto_) == 60
        texts = {text.get_text(): text for text in display.ax_.texts}
        assert "lam=31" in texts
        display.figure_.canvas.draw()
        boxes = [text.get_window_extent() for text in texts.values()]
        for place, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[place + 1 :])


class TestEmbeddingMap:
    def test_one_projection_for_both(self):
        Z = X @ RNG.normal(size=(6, 6))
        display = EmbeddingMapDisplay.from_embeddings(X, Z, LABELS)
        sets = [each - each.mean(0) for each in (X, Z)]
        sets = [each / np.sqrt((each**2).sum() / len(each)) for each in sets]
        # The directions: top eigenvectors of the sum of both covariances, up to their signs.
        vectors = np.linalg.eigh(sum(each.T @ each for each in sets))[1][:, :-3:-1]
        signs = np.sign((sets[0] @ vectors * display.before).sum(0))
        np.testing.assert_allclose(display.before, sets[0] @ vectors * signs, atol=1e-9)
        np.testing.assert_allclose(display.after, sets[1] @ vectors * signs, atol=1e-9)
        for each, share in zip((display.before, display.after), display.shares, strict=True):
            assert share == pytest.approx((each**2).sum() / len(each))

    def test_scale_and_shift_of_either_set_change_nothing(self):
        Z = X @ RNG.normal(size=(6, 6))
        one = EmbeddingMapDisplay.from_embeddings(X, Z)
        other = EmbeddingMapDisplay.from_embeddings(100 * X + 3, Z / 7 - 1)
        np.testing.assert_allclose(other.before, one.before, atol=1e-9)
        np.testing.assert_allclose(other.after, one.after, atol=1e-9)

    def test_points_by_class(self):
        display = EmbeddingMapDisplay.from_estimator(Whitening().fit(X), X, LABELS)
        assert set(display.points_) == {(p, c) for p in ("before", "after") for c in "012"}
        for (panel, name), drawn in display.points_.items():
            coordinates = getattr(display, panel)[str(name) == LABELS.astype(str)]
            np.testing.assert_array_equal(drawn.get_offsets(), coordinates)
        colours = [
            {
                to_hex(drawn.get_facecolor()[0])
                for (_, c), drawn in display.points_.items()
                if c == k
            }
            for k in "012"
        ]
        assert [len(each) for each in colours] == [1, 1, 1]
        assert len(set.union(*colours)) == 3
        for axes, share in zip(display.axes_, display.shares, strict=True):
            assert f"{100 * share:.3g} %" in axes.get_title()
        display.figure_.canvas.draw()

    def test_many_classes_share_grey(self):
        y = np.r_[np.repeat(np.arange(9), 8), 9, 10, 11, 12, 13, 14, 15, 16]
        display = EmbeddingMapDisplay.from_embeddings(X, X, y)
        names = {name for _, name in display.points_}
        assert names == {*map(str, range(9)), "other classes"}
        assert len(display.points_["before", "other classes"].get_offsets()) == 8
        many = RNG.normal(size=(30_000, 2))
        drawn = EmbeddingMapDisplay(many, many, np.arange(30_000) % 3).plot().points_
        for panel in ("before", "after"):
            offsets = [drawn[panel, name].get_offsets() for name in "012"]
            assert sum(map(len, offsets)) == 20_000
            for remainder, rows in enumerate(offsets):
                assert {*map(tuple, rows)} <= {*map(tuple, many[remainder::3])}
        plain = EmbeddingMapDisplay.from_embeddings(X, X)
        assert set(plain.points_) == {("before", ""), ("after", "")}

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: EmbeddingMapDisplay.from_embeddings(X, X[:, :3]), "one projection for both"),
            (lambda: EmbeddingMapDisplay.from_embeddings(X[:, :1], X[:, :1]), "at least 2"),
            (lambda: EmbeddingMapDisplay.from_embeddings(X, X * 0), "Z has 80 equal rows"),
            (lambda: EmbeddingMapDisplay.from_embeddings(X, X, X[:, 0]), "continuous values"),
            (lambda: EmbeddingMapDisplay.from_embeddings(X, X, LABELS[1:]), "inconsistent numbers"),
            (
                lambda: EmbeddingMapDisplay.from_embeddings(X, X, [None] * 80),
                "contains NaN or None",
            ),
            (
                lambda: EmbeddingMapDisplay.from_embeddings(
                    X, X, pd.Series([1, pd.NA] * 40, dtype="Int64")
                ),
                "contains NaN or None",
            ),
            (lambda: EmbeddingMapDisplay(X, X), "before has 6 columns"),
        ],
    )
    def test_errors(self, call, message):
        with pytest.raises(ValueError, match=message):
            call()


DRAWN = {
    "SpectrumDisplay": (lambda ax: SpectrumDisplay.from_embeddings(X, ax=ax), 2),
    "ComparisonDisplay": (lambda ax: ComparisonDisplay.from_comparison(COMPARISON, ax=ax), 2),
    "SearchFrontDisplay": (
        lambda ax: SearchFrontDisplay([0.1, 0.5], [0.9, 0.8], [{}, {}]).plot(ax=ax),
        1,
    ),
    "EmbeddingMapDisplay": (lambda ax: EmbeddingMapDisplay.from_embeddings(X, X, ax=ax), 2),
    "AnisotropyProfile": (lambda ax: AnisotropyProfile([1, 2], {"penalty": [3, 4]}).plot(ax=ax), 2),
}


@pytest.mark.parametrize("name", DRAWN)
class TestHabits:
    def test_own_axes_and_nothing_global(self, name, monkeypatch):
        draw, n_panels = DRAWN[name]
        monkeypatch.setattr(pyplot, "show", lambda: pytest.fail("a display must not show"))
        before = dict(matplotlib.rcParams)
        figure = matplotlib.figure.Figure()
        axes = figure.subplots(1, n_panels)
        display = draw(axes)
        assert display.figure_ is figure
        found = display.axes_ if n_panels > 1 else [display.ax_]
        assert list(found) == list(np.ravel(axes))
        assert display.plot(ax=axes) is display
        assert pyplot.get_fignums() == []
        assert dict(matplotlib.rcParams) == before

    def test_a_new_figure_each_time(self, name):
        display = DRAWN[name][0](None)
        first = display.figure_
        assert display.plot().figure_ is not first

    def test_wrong_axes(self, name):
        draw, n_panels = DRAWN[name]
        figure = matplotlib.figure.Figure()
        for wrong in (figure.subplots(1, 3), "a", figure):
            with pytest.raises(
                ValueError, match=rf"ax=.*{name}.*pass [1{n_panels}] matplotlib Axes"
            ):
                draw(wrong)

    def test_without_matplotlib(self, name, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
        with pytest.raises(ImportError, match=rf'{name} needs matplotlib.*isoadapt\[plot\]"'):
            DRAWN[name][0](None)
