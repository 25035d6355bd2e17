"""The runner: resumable at any kill, locked; and the report, bound to the committed records."""

import json
from functools import partial
from types import SimpleNamespace

import pytest

from benchmarks._commit import commit
from benchmarks.reproduction import __main__ as reproduce
from benchmarks.reproduction._cells import PENALTY, Cell, known_slot
from benchmarks.reproduction._report import reproduction_text

ORDER = [(name, seed) for seed in range(3) for name in ("low", "high")]


def cell(name="low", seed=0, run=lambda: {"score": 1.0}, **settings):
    return Cell(PENALTY, name, "cola", seed, settings, run)


@pytest.fixture
def runs(monkeypatch):
    """A made-up plan of two conditions; tells which cells ran, and what each is to do."""
    ran, instead = [], {}

    def run(name, seed):
        ran.append((name, seed))
        score = {"low": 1.0, "high": 10.0}[name] + seed
        return instead[name, seed]() if (name, seed) in instead else {"score": score}

    slots = [known_slot(0, cell(*key, partial(run, *key))) for key in ORDER]
    monkeypatch.setattr(reproduce, "PAPERS", {})
    monkeypatch.setattr(reproduce, "plan", lambda: slots)
    monkeypatch.setattr("benchmarks.reproduction._report.plan", lambda: slots)
    return SimpleNamespace(ran=ran, instead=instead)


@pytest.fixture
def run(runs, tmp_path):
    def run(*options):
        return reproduce.main(["--out", str(tmp_path), *options])

    return run


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "whole.jsonl").read_text().splitlines()]


def report(tmp_path):
    return (tmp_path / "REPRODUCTION.md").read_text("utf-8")


def test_a_key_changes_with_what_changes_the_result_and_not_with_its_order():
    first, second = cell(lam=-1.0, rows=[1, 2]), cell(rows=[1, 2], lam=-1.0)
    assert first.key == second.key == "penalty/low/cola/0/975a2d2883b4"
    assert len({first.key, cell(lam=1.0, rows=[1, 2]).key, cell(lam=-1.0).key}) == 3


def test_cells_run_in_order_and_once_and_a_failed_one_stops_no_other(run, runs, tmp_path):
    def fail():
        raise ValueError("out of\nluck")

    runs.instead["low", 1] = fail
    assert run() == 1
    assert runs.ran == ORDER
    assert "ValueError: out of luck" in report(tmp_path)
    runs.instead.clear()
    runs.ran.clear()
    assert run() == 0
    assert runs.ran == [("low", 1)]
    assert "out of luck" not in report(tmp_path)
    before = lines(tmp_path)
    assert run() == 0
    assert lines(tmp_path) == before
    assert before[-1]["figures"] == {"score": 2}
    assert before[-1]["commit"] == commit()
    assert {"torch", "transformers", "isoadapt", "torch_threads"} <= set(before[-1]["versions"])


def test_the_report_follows_from_the_records():
    text = (reproduce._places.FOLDER / "REPRODUCTION.md").read_text("utf-8")
    stale = "the report is stale: run `make reproduction-report`"
    assert reproduction_text(reproduce.PAPERS, reproduce.RECORDS) == text, stale
