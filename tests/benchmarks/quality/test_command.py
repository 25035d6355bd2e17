"""The command of all tables: what is measured, kept and said, on a table of three cells."""

import json
from datetime import date
from types import SimpleNamespace

import pytest

from benchmarks._store import HELD, locked
from benchmarks.quality import __main__ as command
from tests.stored_results import RESULTS


@pytest.fixture
def table(monkeypatch, tmp_path):
    """A table with the cells of one task and two seeds, and one that fails."""
    runs = []

    def cell(seed):
        def run():
            runs.append(seed)
            if seed == 2:
                raise ValueError("no luck")
            return {"score": 10 * seed}

        return ("tiny", seed), run

    module = SimpleNamespace(
        KEY=("task", "seed"),
        cells=lambda: map(cell, (0, 1, 2)),
        text=lambda frame: f"scores: {frame['score'].tolist()}",
        runs=runs,
        path=tmp_path / "few_texts.jsonl",
    )
    monkeypatch.setattr(command, "RECORDS_FOLDER", tmp_path)
    monkeypatch.setattr(command, "TABLES", ["few_texts"])
    monkeypatch.setattr(command.importlib, "import_module", lambda name: module)
    return module


def run(*options):
    return command.main(options)


def test_finished_cells_are_kept_and_a_failure_stops_no_other(table, capsys):
    assert run() == 1
    kept = [json.loads(line) for line in table.path.read_text().splitlines()]
    assert [(cell["seed"], cell["score"]) for cell in kept] == [(0, 0), (1, 10)]
    assert "isoadapt" in kept[0]["setting"]
    out, err = capsys.readouterr()
    assert out == f"scores: [0, 10]\n\nMeasured {date.today()}.\n"
    assert "no luck" in err


@pytest.mark.parametrize(
    ("options", "measured"),
    [([], [2]), (["--fresh"], [0, 1, 2]), (["--fresh", "--only", "1"], [1]), (["--report"], [])],
)
def test_a_second_run_measures_only_what_is_missing_or_asked_for(table, options, measured):
    run()
    table.runs.clear()
    run(*options)
    assert table.runs == measured
    table.runs.clear()
    with locked(table.path), pytest.raises(SystemExit) as ended:
        run("--fresh")
    assert ended.value.code == HELD
    assert table.runs == []


@pytest.mark.parametrize("name", command.TABLES)
def test_the_results_are_those_of_the_records(name):
    section = f"<!-- {name}:begin -->\n{command.section(name)}\n<!-- {name}:end -->"
    assert section in RESULTS.read_text("utf-8")
