"""The command of all tables: what is measured, kept and said, on a table of three cells."""

import json
from types import SimpleNamespace

import pytest

from benchmarks._store import HELD, locked
from benchmarks.quality import __main__ as command


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
        SECTION="part",
        RECORDS=tmp_path / "cells.jsonl",
        KEY=("task", "seed"),
        cells=lambda: map(cell, (0, 1, 2)),
        text=lambda records: f"scores: {[record['score'] for record in records]}",
        runs=runs,
    )
    monkeypatch.setattr(command.importlib, "import_module", lambda name: module)
    return module


def run(*options):
    return command.main(["few_rows", *options])


def test_finished_cells_are_kept_and_a_failure_stops_no_other(table, capsys):
    assert run() == 1
    kept = [json.loads(line) for line in table.RECORDS.read_text().splitlines()]
    assert [(cell["task"], cell["seed"], cell["score"]) for cell in kept] == [
        ("tiny", 0, 0),
        ("tiny", 1, 10),
    ]
    assert "isoadapt" in kept[0]["setting"]
    out, err = capsys.readouterr()
    assert out == "scores: [0, 10]\n"
    assert "no luck" in err


def test_a_second_run_measures_only_what_is_missing(table):
    run()
    table.runs.clear()
    run()
    assert table.runs == [2]
    table.runs.clear()
    run("--fresh")
    assert table.runs == [0, 1, 2]


def test_report_measures_nothing_and_only_selects(table, capsys):
    assert run("--only", "TINY", "1") == 0
    assert table.runs == [1]
    assert run("--report") == 0
    assert table.runs == [1]
    assert capsys.readouterr().out == "scores: [10]\n" * 2


def test_write_replaces_the_section_alone(table, tmp_path):
    file = tmp_path / "RESULTS.md"
    file.write_text("# R\n\n<!-- part:begin -->\n\nold\n\n<!-- part:end -->\n\nkept\n", "utf-8")
    run("--only", "0", "--write", str(file))
    expected = "# R\n\n<!-- part:begin -->\n\nscores: [0]\n\n<!-- part:end -->\n\nkept\n"
    assert file.read_text("utf-8") == expected


def test_a_second_run_on_the_same_file_is_refused(table, capsys):
    with locked(table.RECORDS):
        assert run() == HELD
    assert table.runs == []
    assert "is held by process" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["dual_use", "comparison", "trials", "advice"])
def test_the_results_are_those_of_the_records(name, monkeypatch):
    table = command.importlib.import_module(f"benchmarks.quality.{name}")
    section = f"<!-- {table.SECTION}:begin -->\n\n{table.text(command.records(table).entries())}"
    assert section in (command.Path(__file__).parents[3] / "benchmarks" / "RESULTS.md").read_text()
