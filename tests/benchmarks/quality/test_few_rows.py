import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from benchmarks import _data
from benchmarks._data import UnseenRows, load_unseen, narrow_cone
from benchmarks.quality import few_rows
from benchmarks.quality._adapter_rows import MINIBATCH, PROBE, Row, Unchanged
from benchmarks.quality._claims import RowFigures
from benchmarks.quality._few_rows_cells import FitFigures, measure_fit, splits
from benchmarks.quality._few_rows_checks import SizeResult, few_rows_checks, probe_standard_error
from isoadapt import LogitPreservingWhitening
from isoadapt.metrics import isoscore

FIGURES = FitFigures(0.75, 0.5, False, False, 1.0, 300, 100)
TASK = "tiny"


def unseen(n, sizes=(60, 200)):
    data = narrow_cone(n, 6, seed=0)
    return UnseenRows("tiny rows", data.X_train, data.y_train, sizes)


def judged(name, **columns):
    """A row with one fit for each entry of the columns."""
    n_fits = len(next(iter(columns.values())))
    fits = [{column: values[i] for column, values in columns.items()} for i in range(n_fits)]
    return RowFigures(name, {draw: replace(FIGURES, **fit) for draw, fit in enumerate(fits)})


def result(*rows, n=300, width=100):
    return SizeResult("tiny rows", n, width, {row.name: row for row in rows}, [])


# --- which rows fit and which judge -----------------------------------------------------------


def test_draws_are_stratified_disjoint_and_as_large_as_asked():
    data = unseen(240)
    found = splits(data, 60, 3)
    assert [split.draw for split in found] == [0, 1, 2]
    for split in found:
        assert len(split.fitting) == 60
        assert sorted([*split.fitting, *split.judging]) == list(range(240))
        assert data.y[split.fitting].mean() == pytest.approx(data.y.mean(), abs=1 / 60)
    assert set(found[0].fitting) != set(found[1].fitting)


@pytest.mark.parametrize(("n", "kept"), [(140, True), (141, False)])
def test_sizes_that_leave_too_few_rows_to_judge_are_left_out(n, kept):
    assert bool(splits(unseen(240), n, 1)) is kept


def test_all_rows_judge_once_in_five_folds():
    found = splits(unseen(240), None, 5)
    assert sorted(np.concatenate([split.judging for split in found])) == list(range(240))
    assert all(len(split.fitting) == 240 - len(split.judging) for split in found)
    assert len(splits(unseen(240), None, 2)) == 2
    assert len(splits(unseen(240), None, 9)) == 5


def test_unseen_rows_are_those_of_all_splits_but_train(monkeypatch, tmp_path):
    monkeypatch.setattr(_data, "shared_folder", lambda: tmp_path)
    (tmp_path / "embeddings").mkdir()
    rng = np.random.default_rng(0)
    train, dev, test = (rng.normal(size=(n, 3)).astype(np.float32) for n in (9, 4, 5))
    dev[1] = train[7]
    arrays = {"E_train": train, "E_dev": dev, "E_test": test}
    labels = {f"y_{split}": np.arange(n) for split, n in (("train", 9), ("dev", 4), ("test", 5))}
    np.savez(tmp_path / "embeddings" / "tiny.npz", **arrays, **labels)
    rows = load_unseen(TASK)
    assert rows.name == "tiny dev + test"
    np.testing.assert_array_equal(rows.X, np.concatenate([dev[[0, 2, 3]], test]))
    np.testing.assert_array_equal(rows.y, [0, 2, 3, 0, 1, 2, 3, 4])


# --- one fit ----------------------------------------------------------------------------------


class Doubtful(BaseEstimator):
    """Warns as it is told, predicts class 1 and doubles the embeddings."""

    def __init__(self, *doubts):
        self.doubts = doubts

    def fit(self, X, y):
        for doubt in self.doubts:
            warnings.warn(doubt, stacklevel=1)
        self.n_fitted = len(X)
        return self

    def predict(self, X):
        return np.ones(len(X), int)

    def transform(self, X):
        return 2 * X


HARM = UserWarning("this fit harms the task: the score falls")
HASTE = ConvergenceWarning("training ended while the score was still rising")


@pytest.mark.parametrize(
    ("doubts", "harmful", "unconverged"),
    [
        ((), False, False),
        ((HARM,), True, False),
        ((HASTE,), False, True),
        ((HARM, HASTE), True, True),
    ],
)
def test_both_kinds_of_warnings_are_counted_and_not_shown(recwarn, doubts, harmful, unconverged):
    data = unseen(240)
    (split,) = splits(data, 60, 1)
    figures = measure_fit(Doubtful(*doubts), data, split).figures
    assert (figures.harmful, figures.unconverged) == (harmful, unconverged)
    assert not recwarn.list


def test_other_warnings_are_shown():
    data = unseen(240)
    (split,) = splits(data, 60, 1)
    with pytest.warns(UserWarning, match="something else"):
        figures = measure_fit(Doubtful(UserWarning("something else")), data, split).figures
    assert not figures.harmful


def test_figures_are_those_of_the_rows_that_judge():
    data = unseen(240)
    (split,) = splits(data, 60, 1)
    estimator = Doubtful()
    figures = measure_fit(estimator, data, split).figures
    assert (figures.n_fitted, figures.n_judged) == (60, 180) == (estimator.n_fitted, 180)
    assert figures.accuracy == pytest.approx(data.y[split.judging].mean())
    expected = isoscore(data.X[split.judging], bias_corrected=True)
    assert figures.corrected == pytest.approx(expected, rel=1e-5)


# --- checks -----------------------------------------------------------------------------------


def test_standard_error_is_that_of_one_draw_or_of_all_folds():
    probe = judged(PROBE, accuracy=[0.7, 0.9], n_judged=[100, 100])
    assert probe_standard_error(result(probe)) == pytest.approx(0.04)
    assert probe_standard_error(result(probe, n=None)) == pytest.approx(0.04 / np.sqrt(2))


def test_losses_are_listed_with_whether_every_fit_warned():
    probe = judged(PROBE, accuracy=[0.8, 0.8])
    rows = [
        judged("within", accuracy=[0.77, 0.76]),
        judged("quiet", accuracy=[0.7, 0.7], harmful=[False, True]),
        judged("told", accuracy=[0.7, 0.7], harmful=[False, True], unconverged=[True, False]),
    ]
    first, *cells = few_rows_checks([result(probe, *rows)])[0].splitlines()
    assert "2 of 3 cells" in first
    assert "1 of these" in first
    assert cells == [
        "  - tiny rows, n=300: quiet: 0.700 against 0.800, standard error 0.040; "
        "every fit warned: **no** (1 of 2)",
        "  - tiny rows, n=300: told: 0.700 against 0.800, standard error 0.040; "
        "every fit warned: yes (2 of 2)",
    ]


def test_false_alarms_are_counted_among_the_fits_that_lose_nothing():
    probe = judged(PROBE, accuracy=[0.8, 0.8, 0.8])
    rows = [
        judged("a", accuracy=[0.77, 0.9, 0.7], harmful=[True, False, True]),
        judged("b", accuracy=[0.8] * 3),
        judged("c", accuracy=[0.5] * 3, harmful=[True] * 3),
    ]
    line = few_rows_checks([result(probe, *rows)])[1]
    assert line.endswith(
        "all **no** (1 of 5, 20.0 %); a **no** (1 of 2, 50.0 %); b yes (0 of 3, 0.0 %)"
    )


def test_isotropy_is_asked_for_where_rows_are_twice_the_dimensions():
    probe = judged(PROBE, accuracy=[0.8, 0.8])

    def layer(low, n):
        row = judged(MINIBATCH, corrected=[0.6, low], n_fitted=[n, n])
        return result(probe, row, n=n, width=100)

    few, low, high = layer(0.1, 199), layer(0.25, 200), layer(0.3, 900)
    assert "**no**" not in (line := few_rows_checks([few, high])[2])
    assert line.endswith("yes: tiny rows, n=900: 0.300")
    assert few_rows_checks([few, low, high])[2].endswith(
        "**no**: tiny rows, n=200: **0.250**; tiny rows, n=900: 0.300"
    )
    assert few_rows_checks([few])[2].endswith("not measured")


def test_checks_without_a_probe_say_so():
    alone = result(judged("a", accuracy=[0.1]))
    assert all("not measured" in line for line in few_rows_checks([alone]))


# --- the command ------------------------------------------------------------------------------


@pytest.fixture
def fits(monkeypatch, tmp_path):
    """A tiny task and two rows, and what was fitted to how many rows."""
    fitted = []

    def counted(name, make):
        def make_counted(head):
            estimator = make(head)
            fit = estimator.fit
            estimator.fit = lambda X, y: (fitted.append((name, len(X))), fit(X, y))[1]
            return estimator

        return Row(name, make_counted)

    rows = [
        counted(PROBE, lambda head: Unchanged(head, refit=True)),
        counted("preserving", LogitPreservingWhitening),
    ]
    monkeypatch.setattr(few_rows, "ROWS", rows)
    monkeypatch.setattr(few_rows, "known_tasks", lambda: [TASK])
    monkeypatch.setattr(few_rows, "load_unseen_rows", lambda task: unseen(240))
    return fitted


@pytest.fixture
def run(fits, tmp_path):
    """Run the command with two draws on a file of cells in tmp_path."""

    def run(*options, draws=2):
        cells = ["--cells", str(tmp_path / "cells.jsonl")]
        return few_rows.main(["--draws", str(draws), *cells, *options])

    return run


def stored(tmp_path):
    return [json.loads(line) for line in (tmp_path / "cells.jsonl").read_text("utf-8").splitlines()]


ALL_FITS = [(name, n) for n in (60, 192) for name in (PROBE, "preserving") for _ in range(2)]


def test_every_fit_is_kept_and_told_of(run, fits, tmp_path, capsys):
    assert run() == 0
    assert fits == ALL_FITS
    kept = stored(tmp_path)
    assert [(cell["task"], cell["row"], cell["seed"]) for cell in kept[:3]] == [
        ("tiny rows, n=60", PROBE, 0),
        ("tiny rows, n=60", PROBE, 1),
        ("tiny rows, n=60", "preserving", 0),
    ]
    out, err = capsys.readouterr()
    assert err.splitlines()[1].startswith(f"[2/8] tiny rows, n=60: {PROBE}, draw 1: ")
    lines = [line.split(" | ") for line in out.splitlines() if line.startswith("| ")]
    assert [line[:3] for line in lines[2:]] == [
        [f"| {PROBE}", "60", "180"],
        ["| preserving", "60", "180"],
        [f"| {PROBE}", "all, 192", "96"],
        ["| preserving", "all, 192", "96"],
    ]


def test_adapters_that_keep_every_prediction_differ_from_the_probe_by_nothing(run, capsys):
    run()
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    (line,) = [line for line in lines if line[:2] == ["| preserving", "60"]]
    assert line[4] == "0.0000"
    assert line[6:8] == ["0/2", "0/2"]


def test_second_run_refits_nothing_and_prints_the_same(run, fits, capsys):
    run()
    first = capsys.readouterr().out
    fits.clear()
    assert run() == 0
    assert fits == []
    assert capsys.readouterr().out == first


def test_more_draws_fit_only_what_is_missing(run, fits):
    run()
    fits.clear()
    run(draws=3)
    assert fits == [(name, n) for n in (60, 192) for name in (PROBE, "preserving")]


@pytest.mark.parametrize("changed", ["labels", "splits", "sources"])
def test_changed_circumstances_refit_all(run, fits, monkeypatch, tmp_path, changed):
    run()
    fits.clear()
    if changed == "labels":
        other = unseen(240)._replace(y=1 - unseen(240).y)
        monkeypatch.setattr(few_rows, "load_unseen_rows", lambda task: other)
    elif changed == "splits":

        def reordered(data, n, draws):
            return [split._replace(fitting=split.fitting[::-1]) for split in splits(data, n, draws)]

        monkeypatch.setattr(few_rows, "splits", reordered)
    else:
        (tmp_path / "cells.py").write_text("other", "utf-8")
        monkeypatch.setattr(few_rows._few_rows_cells, "__file__", str(tmp_path / "cells.py"))
    run()
    assert fits == ALL_FITS


def test_interruption_keeps_finished_cells(run, fits, monkeypatch, tmp_path, capsys):
    measure = few_rows.measure_fit

    def interrupted(estimator, *rest):
        if isinstance(estimator, LogitPreservingWhitening):
            raise KeyboardInterrupt
        return measure(estimator, *rest)

    monkeypatch.setattr(few_rows, "measure_fit", interrupted)
    results = tmp_path / "RESULTS.md"
    assert run("--write", str(results)) == 130
    assert not results.exists()
    assert "the same command goes on" in capsys.readouterr().err
    monkeypatch.setattr(few_rows, "measure_fit", measure)
    fits.clear()
    assert run() == 0
    assert fits == ALL_FITS[2:]


def test_failed_fit_is_told_and_the_others_go_on(run, monkeypatch, capsys):
    measure = few_rows.measure_fit

    def failing(estimator, *rest):
        if isinstance(estimator, Unchanged):
            raise ValueError("no luck")
        return measure(estimator, *rest)

    monkeypatch.setattr(few_rows, "measure_fit", failing)
    assert run() == 1
    out = capsys.readouterr().out
    assert f"- not measured: tiny rows, n=60: {PROBE}: draw 1: ValueError: no luck" in out
    assert f"| {PROBE} | 60 | failed |" in out


def test_task_that_cannot_be_loaded_is_told(run, monkeypatch, capsys):
    def missing(task):
        raise ImportError("install the extra demo")

    monkeypatch.setattr(few_rows, "load_unseen_rows", missing)
    assert run() == 1
    assert "- not measured: tiny: ImportError: install the extra demo" in capsys.readouterr().out


def test_write_replaces_the_section_alone(run, tmp_path):
    results = tmp_path / "RESULTS.md"
    before = "# R\n\n<!-- few-rows:begin -->\n\nold\n\n<!-- few-rows:end -->\n\nkept\n"
    results.write_text(before, "utf-8")
    assert run("--write", str(results)) == 0
    after = results.read_text("utf-8")
    assert after.endswith("<!-- few-rows:end -->\n\nkept\n")
    assert "\nold\n" not in after
    assert "### Checks" in after


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rows", "nothing"], "no row's name holds 'nothing'"),
        (["--rows", "preserving", "--write", "x.md"], "leave out --rows"),
        (["--draws", "0"], "--draws 0 must be 1 or more"),
    ],
)
def test_useless_options_are_refused(fits, capsys, options, said):
    with pytest.raises(SystemExit) as stopped:
        few_rows.main(options)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
    assert fits == []


def test_rows_of_the_table_are_those_of_its_task():
    assert [row.name for row in few_rows.ROWS] == [
        PROBE,
        MINIBATCH,
        "IsotropyLayer, exact",
        "same layer, no penalty",
        "IStarAdapter",
        "LogitPreservingWhitening",
    ]
    control = few_rows.ROWS[3].make("logistic")
    assert control.alpha == 1.0
