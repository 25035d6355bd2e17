import json
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks._data import narrow_cone
from benchmarks._store import HELD, locked
from benchmarks.quality import _cells, embeddings_table
from benchmarks.quality._adapter_rows import (
    BASE,
    ROWS,
    Row,
    Unchanged,
)
from benchmarks.quality._cells import Key, cell_line, cell_store
from benchmarks.quality._table_cells import Figures, measure_cell
from isoadapt import ClusterIsotropy, LogitPreservingWhitening, Whitening
from isoadapt.adapters._registry import ADAPTERS

FIGURES = Figures(0.75, 0.5, 0.6, 0.001, 0.001, 0.9, 0.95, 0.3, 12.0, 1.0, 0)
KEY = Key("task", "row", 0, "Adapter()", "1", "sources", "data")
CELL = _cells.MeasuredCell(FIGURES, "python 3")
TASK = "tiny"
PACKAGES = ("adapters", "losses", "geometry", "metrics")


@pytest.fixture
def fits(monkeypatch, tmp_path):
    """A tiny task and four rows, and the names of the rows that were fitted."""
    data = narrow_cone(240, 6, seed=0)
    fitted = []

    def counted(name, make):
        def make_counted(head):
            estimator = make(head)
            fit = estimator.fit
            estimator.fit = lambda X, y: (fitted.append(name), fit(X, y))[1]
            return estimator

        return Row(name, make_counted)

    rows = [
        counted(BASE, Unchanged),
        counted("clusters", lambda head: ClusterIsotropy(2, head=head)),
        counted("whitening", lambda head: Whitening(head=head)),
        counted("preserving", LogitPreservingWhitening),
    ]
    monkeypatch.setattr(embeddings_table, "ROWS", rows)
    monkeypatch.setattr(embeddings_table, "stored_tasks", lambda: [TASK])
    monkeypatch.setattr(embeddings_table, "load_embeddings", lambda task: data)
    return fitted


@pytest.fixture
def run(fits, tmp_path):
    """Run the command with two seeds on a file of cells in tmp_path."""

    def run(*options, seeds=2):
        cells = ["--cells", str(tmp_path / "cells.jsonl")]
        return embeddings_table.main(["--seeds", str(seeds), *cells, *options])

    return run


ALL_FITS = [BASE, "clusters", "clusters", "whitening", "preserving"]


def stored(tmp_path):
    return [json.loads(line) for line in (tmp_path / "cells.jsonl").read_text("utf-8").splitlines()]


def test_every_fit_is_kept_and_told_of(run, fits, tmp_path, capsys):
    assert run() == 0
    assert fits == ALL_FITS
    kept = stored(tmp_path)
    assert [(cell["row"], cell["seed"]) for cell in kept] == [
        (BASE, None),
        ("clusters", 0),
        ("clusters", 1),
        ("whitening", None),
        ("preserving", None),
    ]
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 5
    assert err.splitlines()[1].startswith("[2/5] tiny: clusters, seed 0: ")
    assert "synthetic cone, n=30" in out
    assert kept[0]["setting"] in out


def test_figures_are_those_of_the_test_rows(run, tmp_path):
    run()
    data = embeddings_table.load_embeddings(TASK)
    base, *_, preserving = (cell["figures"] for cell in stored(tmp_path))
    adapter = LogitPreservingWhitening(data.head).fit(data.X_train, data.y_train)
    assert base["accuracy"] == pytest.approx(data.head.score(data.X_test, data.y_test))
    assert preserving["accuracy"] == base["accuracy"]
    assert preserving["changed"] == base["changed"] == 0
    assert preserving["cross_entropy"] == pytest.approx(base["cross_entropy"])
    covariance = np.cov(adapter.transform(data.X_test).astype(float).T)
    rank = np.trace(covariance) ** 2 / (covariance**2).sum()
    assert preserving["isoscore"] == pytest.approx((rank - 1) / 5, rel=1e-4)
    assert preserving["ev1"] == pytest.approx(
        np.linalg.eigvalsh(covariance)[-1] / np.trace(covariance), rel=1e-4
    )


def test_changed_counts_predictions_that_differ_from_the_stored_head():
    data = narrow_cone(240, 6, seed=1)
    flipped = type(data.head)(-data.head.coef_, -data.head.intercept_, [0, 1])
    cell = measure_cell(Unchanged(flipped), data)
    assert cell.figures.changed == len(data.y_test)


def test_second_run_refits_nothing_and_prints_the_same(run, fits, capsys):
    run()
    first = capsys.readouterr().out
    fits.clear()
    assert run() == 0
    assert fits == []
    out, err = capsys.readouterr()
    assert out == first
    assert err.count("measured before") == 5


def test_more_seeds_fit_only_what_is_missing(run, fits):
    run()
    fits.clear()
    run(seeds=3)
    assert fits == ["clusters"]


def test_a_second_run_on_the_same_file_is_refused(run, fits, tmp_path, capsys):
    with locked(tmp_path / "cells.jsonl"):
        assert run() == HELD
    assert fits == []
    assert "cells.jsonl is held by process" in capsys.readouterr().err
    assert run() == 0


def test_fresh_measures_anew_and_its_cells_win(run, fits, tmp_path):
    run()
    fits.clear()
    assert run("--fresh") == 0
    assert fits == ALL_FITS
    assert len(stored(tmp_path)) == 10
    fits.clear()
    run()
    assert fits == []
    reread = cell_store(tmp_path / "cells.jsonl", Figures)
    last = stored(tmp_path)[-1]
    key = Key(*(last[name] for name in Key._fields))
    assert reread.get(key).figures.seconds == last["figures"]["seconds"]


def test_changed_parameter_refits_that_row_alone(run, fits, monkeypatch):
    run()
    fits.clear()
    rows = list(embeddings_table.ROWS)
    make = rows[2].make
    rows[2] = Row("whitening", lambda head: make(head).set_params(strength=0.5))
    monkeypatch.setattr(embeddings_table, "ROWS", rows)
    run()
    assert fits == ["whitening"]


@pytest.mark.parametrize("changed", ["version", "sources", "data"])
def test_changed_circumstances_refit_all(run, fits, monkeypatch, changed):
    run()
    fits.clear()
    if changed == "version":
        monkeypatch.setattr(_cells.isoadapt, "__version__", "0.0.0")
    elif changed == "sources":
        monkeypatch.setattr(_cells, "sources_fingerprint", lambda *measuring: "other")
    else:
        data = embeddings_table.load_embeddings(TASK)
        other = data._replace(y_train=1 - data.y_train)
        monkeypatch.setattr(embeddings_table, "load_embeddings", lambda task: other)
    run()
    assert fits == ALL_FITS


def test_fingerprint_follows_the_sources(monkeypatch, tmp_path):
    for name in (*PACKAGES, "cli"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "_x.py").write_text("one")
    for name in ("heads.py", "__init__.py"):
        (tmp_path / name).write_text("one")
    monkeypatch.setattr(_cells.isoadapt, "__file__", str(tmp_path / "__init__.py"))
    fingerprint = _cells.sources_fingerprint.__wrapped__
    before = fingerprint()
    (tmp_path / "cli" / "_x.py").write_text("two")
    assert fingerprint() == before
    for changed in (*(f"{name}/_x.py" for name in PACKAGES), "heads.py"):
        (tmp_path / changed).write_text("two")
        assert fingerprint() != before
        (tmp_path / changed).write_text("one")
    assert fingerprint() == before
    (tmp_path / "heads.py").unlink()
    with pytest.raises(FileNotFoundError, match=r"heads\.py holds no code"):
        fingerprint()


def test_torn_last_line_is_ignored(run, fits, tmp_path):
    run()
    path = tmp_path / "cells.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    fits.clear()
    assert run() == 0
    assert fits == ["preserving"]
    assert len(stored(tmp_path)) == 5


def test_whole_line_that_is_no_cell_is_an_error(tmp_path):
    path = tmp_path / "cells.jsonl"
    cell_store(path, Figures).add(cell_line(KEY, CELL))
    with path.open("a") as file:
        file.write('{"task": "x"}\n')
    with pytest.raises(ValueError, match="line 2 holds no cell"):
        cell_store(path, Figures)
    assert cell_store(path, Figures, fresh=True).get(KEY) is None


def test_cells_come_back_as_they_were(tmp_path):
    path = tmp_path / "new" / "cells.jsonl"
    undefined = _cells.MeasuredCell(replace(FIGURES, two_nn=math.nan), "python 3")
    cell_store(path, Figures).add(cell_line(KEY, CELL))
    cell_store(path, Figures).add(cell_line(KEY._replace(seed=None), undefined))
    again = cell_store(path, Figures)
    assert again.get(KEY) == CELL
    assert math.isnan(again.get(KEY._replace(seed=None)).figures.two_nn)
    assert again.get(KEY._replace(seed=1)) is None


def test_interruption_keeps_finished_cells(run, fits, monkeypatch, tmp_path, capsys):
    measure = embeddings_table.measure_cell

    def interrupted(estimator, data):
        if isinstance(estimator, Whitening):
            raise KeyboardInterrupt
        return measure(estimator, data)

    monkeypatch.setattr(embeddings_table, "measure_cell", interrupted)
    results = tmp_path / "RESULTS.md"
    assert run("--write", str(results)) == 130
    assert len(stored(tmp_path)) == 3
    assert not results.exists()
    assert "the same command goes on" in capsys.readouterr().err
    monkeypatch.setattr(embeddings_table, "measure_cell", measure)
    fits.clear()
    assert run() == 0
    assert fits == ["whitening", "preserving"]


def test_failed_fit_is_told_and_the_others_go_on(run, monkeypatch, tmp_path, capsys):
    measure = embeddings_table.measure_cell

    def failing(estimator, data):
        if isinstance(estimator, Whitening) or estimator.get_params().get("random_state") == 1:
            raise ValueError("no luck")
        return measure(estimator, data)

    monkeypatch.setattr(embeddings_table, "measure_cell", failing)
    assert run() == 1
    out, err = capsys.readouterr()
    assert "- not measured: whitening: ValueError: no luck" in out
    assert "- not measured: clusters: seed 1: ValueError: no luck" in out
    assert "| whitening | failed |" in out
    assert err.count("failed, ValueError: no luck") == 2
    assert [cell["row"] for cell in stored(tmp_path)] == [BASE, "clusters", "preserving"]


def test_write_replaces_the_section_alone(run, tmp_path):
    results = tmp_path / "RESULTS.md"
    before = "# R\n\n<!-- embeddings:begin -->\n\nold\n\n<!-- embeddings:end -->\n\nkept\n"
    results.write_text(before, "utf-8")
    assert run("--write", str(results)) == 0
    after = results.read_text("utf-8")
    assert after.startswith("# R\n\n<!-- embeddings:begin -->\n\nAdapters fitted")
    assert after.endswith("<!-- embeddings:end -->\n\nkept\n")
    assert "\nold\n" not in after
    assert "### Directions" in after


def test_rows_are_chosen_by_name(run, fits, capsys):
    assert run("--rows", "WHIT", "preserv") == 0
    assert fits == [BASE, "whitening", "preserving"]
    assert "clusters" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rows", "nothing"], "no row's name holds 'nothing'"),
        (["--rows", "whitening", "--write", "x.md"], "leave out --rows"),
        (["--seeds", "0"], "--seeds 0 must be 1 or more"),
    ],
)
def test_useless_options_are_refused(fits, capsys, options, said):
    with pytest.raises(SystemExit) as stopped:
        embeddings_table.main(options)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
    assert fits == []


def test_spread_is_shown_where_there_are_seeds(run, fits, capsys):
    run()
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split(" | ")[0]: line.split(" | ") for line in lines if line.startswith("| ")}
    assert [index for index, cell in enumerate(cells["| clusters"]) if "±" in cell] == [1, 2]
    assert not any("±" in cell for cell in cells["| whitening"])


def test_every_adapter_has_a_row_that_fits():
    data = narrow_cone(120, 6, seed=0)
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    made = {type(row.make(data.head)).__name__ for row in ROWS}
    assert set(ADAPTERS) <= made
    for row in ROWS:
        estimator = row.make_seeded(data.head, 0 if row.takes_seed() else None)
        if "max_epochs" in estimator.get_params():
            estimator.set_params(max_epochs=1)
        figures = measure_cell(estimator, data).figures
        assert 0 <= figures.isoscore <= 1, row.name
        assert estimator.get_params(deep=False)["head"] is data.head


def test_rows_with_a_seed_are_those_that_draw():
    seedless = [row.name for row in ROWS if not row.takes_seed()]
    assert seedless == [
        BASE,
        "head refit only",
        "IsotropyLayer, exact",
        "IsoBN, head refit",
        "AllButTheTop, head refit",
        "Whitening, head refit",
        "Whitening, oas, head refit",
        "LogitPreservingWhitening",
    ]
