"""The runner: resumable at any kill, locked, ended cleanly by signals."""

import json
import os
import signal
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks._commit import commit
from benchmarks._store import locked
from benchmarks.reproduction import __main__ as reproduce, istar_scores
from benchmarks.reproduction._cells import PENALTY, Cell
from benchmarks.reproduction._figures import of
from benchmarks.reproduction._plan import Slot
from benchmarks.reproduction._records import record_store, run_cell
from benchmarks.reproduction._running import Stop, Stopped, expected_seconds
from benchmarks.reproduction._verdicts import HOLDS, NOT_SHOWN, Claim, moves, not_testable

LOW, HIGH = of("low", "cola"), of("high", "cola")


def cell(name="low", seed=0, run=lambda: {"score": 1.0}, **settings):
    return Cell(PENALTY, name, "cola", seed, settings, run)


def record(name, seed, **figures):
    return run_cell(cell(name, seed, lambda: figures))


@pytest.fixture
def runs(monkeypatch):
    """A made-up plan of two conditions; tells which cells ran, and what each is to do."""
    ran, instead = [], {}

    def run(name, seed, score):
        ran.append((name, seed))
        if (name, seed) in instead:
            return instead[name, seed]()
        return {"score": score + seed}

    def slot(name, seed, score):
        made = cell(name, seed, partial(run, name, seed, score))
        return Slot(0, "points", name, "cola", seed, lambda recipe: made)

    slots = [
        slot(name, seed, score) for seed in range(3) for name, score in (("low", 1.0), ("high", 10))
    ]
    paper = SimpleNamespace(
        claims=lambda: [
            Claim("table 1", "the score rises", "1 → 2", moves(LOW, HIGH, "score", 1)),
            Claim("table 2", "translates well", "30 BLEU", not_testable("needs WMT")),
        ],
        tables=lambda records: f"{len(records)} records" if records else "",
    )
    monkeypatch.setattr(reproduce, "PAPERS", {"003": (paper,)})
    monkeypatch.setattr(reproduce, "plan", lambda suite: slots)
    monkeypatch.setattr("benchmarks.reproduction._report.plan", lambda suite: slots)
    return SimpleNamespace(ran=ran, instead=instead)


@pytest.fixture
def run(runs, tmp_path):
    def run(*options):
        return reproduce.main(["--suite", "quick", "--out", str(tmp_path), *options])

    return run


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "quick.jsonl").read_text().splitlines()]


def report(tmp_path):
    return (tmp_path / "REPRODUCTION.md").read_text("utf-8")


def verdict_line(tmp_path, claim):
    return next(line for line in report(tmp_path).splitlines() if line.startswith(f"| {claim}"))


ORDER = [(name, seed) for seed in range(3) for name in ("low", "high")]


# --- keys ------------------------------------------------------------------------------------


def test_a_key_is_the_same_whatever_the_order_of_the_settings():
    first, second = cell(lam=-1.0, rows=[1, 2]), cell(rows=[1, 2], lam=-1.0)
    assert first.key == second.key == "penalty/low/cola/0/975a2d2883b4"


def test_a_key_changes_with_everything_that_changes_the_result():
    base = cell(lam=-1.0)
    others = [
        cell(lam=1.0),
        cell(),
        cell("high", lam=-1.0),
        cell(seed=1, lam=-1.0),
        replace(base, task="rte"),
        replace(base, kind="base"),
    ]
    assert len({base.key, *(other.key for other in others)}) == 7


# --- running ---------------------------------------------------------------------------------


def test_cells_run_in_the_order_of_the_plan_and_only_once(run, runs, tmp_path):
    assert run() == 0
    assert runs.ran == ORDER
    first = lines(tmp_path)
    assert run() == 0
    assert len(runs.ran) == 6
    assert lines(tmp_path) == first


def test_a_record_tells_what_ran_by_which_code(run, tmp_path):
    run()
    found = lines(tmp_path)[-1]
    assert found["key"].startswith("penalty/high/cola/2/")
    assert (found["kind"], found["name"], found["task"], found["seed"]) == (
        "penalty",
        "high",
        "cola",
        2,
    )
    assert found["figures"] == {"score": 12}
    assert min(found["seconds"], found["processor_seconds"]) >= 0
    assert found["commit"] == commit()
    assert {"torch", "transformers", "isoadapt", "torch_threads"} <= set(found["versions"])


def test_after_a_kill_in_the_middle_of_a_line_that_cell_runs_again(run, runs, tmp_path):
    run()
    file = tmp_path / "quick.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    runs.ran.clear()
    assert run() == 0
    assert runs.ran == [("high", 2)]
    assert len(lines(tmp_path)) == 6


def test_a_line_that_is_no_cell_is_named(run, tmp_path):
    (tmp_path / "quick.jsonl").write_text("nonsense\n")
    with pytest.raises(ValueError, match=r"quick\.jsonl, line 1 holds no cell"):
        run()


def test_a_failed_cell_is_reported_and_tried_again_and_stops_no_other(run, runs, tmp_path):
    def fail():
        raise ValueError("out of\nluck")

    runs.instead["low", 1] = fail
    assert run() == 1
    assert runs.ran == ORDER
    assert "penalty/low/cola/1/" in report(tmp_path)
    assert "ValueError: out of luck" in report(tmp_path)
    runs.instead.clear()
    runs.ran.clear()
    assert run() == 0
    assert runs.ran == [("low", 1)]
    assert "out of luck" not in report(tmp_path)


def test_a_figure_that_is_not_finite_is_none_however_deep():
    figures = {"score": float("nan"), "layers": [1.0, float("inf"), [float("nan")]]}
    assert record("low", 0, **figures)["figures"] == {"score": None, "layers": [1.0, None, [None]]}


def test_figures_that_json_cannot_hold_fail_the_cell():
    assert "TypeError" in run_cell(cell(run=lambda: {"score": np.ones(2)}))["error"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_within_a_cell_keeps_what_is_finished(run, runs, tmp_path, number, code):
    runs.instead["low", 1] = lambda: os.kill(os.getpid(), number) or time.sleep(5)
    assert run() == code
    assert [(found["name"], found["seed"]) for found in lines(tmp_path)] == ORDER[:2]
    assert "2 of 6" in report(tmp_path)
    runs.instead.clear()
    assert run() == 0
    assert len(lines(tmp_path)) == 6


def test_a_cell_that_swallows_the_signal_is_not_kept(run, runs, tmp_path):
    def swallow():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except BaseException:  # as a training loop might
            return {"score": -1.0}

    runs.instead["low", 1] = swallow
    assert run() == 143
    assert [found["figures"]["score"] for found in lines(tmp_path)] == [1.0, 10]


def test_a_signal_waits_for_what_is_shielded():
    done = []

    def write(stop):
        with stop.shielded():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append(1)

    with Stop() as stop:
        with pytest.raises(Stopped) as stopped:
            write(stop)
        assert done == [1]
        assert stopped.value.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_report_that_fails_in_between_does_not_end_the_run(run, runs, monkeypatch):
    monkeypatch.setattr(reproduce, "CELLS_BETWEEN_REPORTS", 1)
    write, broken = reproduce.write_reproduction, [OSError("disk full")]

    def write_reproduction(*arguments):
        if broken:
            raise broken.pop()
        write(*arguments)

    monkeypatch.setattr(reproduce, "write_reproduction", write_reproduction)
    assert run() == 0
    assert len(runs.ran) == 6


def test_a_report_appears_before_the_last_cell(run, runs, monkeypatch, tmp_path):
    monkeypatch.setattr(reproduce, "CELLS_BETWEEN_REPORTS", 2)
    seen = []
    for key in ORDER:
        runs.instead[key] = lambda: (
            seen.append((tmp_path / "REPRODUCTION.md").exists()) or {"score": 1.0}
        )
    assert run() == 0
    assert seen == [False, False, True, True, True, True]


def test_no_budget_starts_nothing_but_writes_the_report(run, runs, tmp_path):
    assert run("--budget", "0") == 0
    assert runs.ran == []
    assert not (tmp_path / "quick.jsonl").exists()
    assert "waiting" in verdict_line(tmp_path, "the score rises")


def test_the_run_ends_before_a_cell_that_would_outlast_the_budget(run, runs, tmp_path):
    run("--budget", "60")
    costly = [
        {**found, "processor_seconds": 7200.0} if found["name"] == "high" else found
        for found in lines(tmp_path)
        if found["seed"] == 0
    ]
    (tmp_path / "quick.jsonl").write_text("".join(json.dumps(found) + "\n" for found in costly))
    runs.ran.clear()
    assert run("--budget", "60") == 0
    assert runs.ran == [("low", 1)]


def test_the_cost_of_a_cell_is_learnt_from_those_that_were_run():
    def past(kind, name, task, seconds):
        fields = {"kind": kind, "name": name, "task": task, "seed": 0}
        return {**fields, "processor_seconds": seconds}

    finished = [
        past("post-hoc", "low", "cola", 1.0),
        past("penalty", "other", "mrpc", 300.0),
        past("penalty", "other", "cola", 100.0),
        past("penalty", "low", "cola", 200.0),
    ]
    found = [expected_seconds(cell().fields(), finished[:n]) for n in range(5)]
    assert found == [0.0, 0.0, 300.0, 100.0, 200.0]


def test_a_negative_budget_is_refused(run, capsys):
    with pytest.raises(SystemExit):
        run("--budget", "-1")
    assert "--budget -1.0 must be 0 or more" in capsys.readouterr().err


# --- the lock --------------------------------------------------------------------------------


def test_a_second_run_says_who_holds_the_records_and_ends(run, runs, tmp_path, capsys):
    with locked(tmp_path / "quick.jsonl"):
        assert run() == 2
    assert runs.ran == []
    told = capsys.readouterr().err
    assert f"quick.jsonl is held by process {os.getpid()} on" in told
    assert f"commit {commit()}" in told
    assert run() == 0


# --- the report ------------------------------------------------------------------------------


def test_the_report_has_verdicts_and_tables(run, tmp_path):
    run()
    line = verdict_line(tmp_path, "the score rises")
    assert "2.0 ± 1.0 → 11.0 ± 1.0 | 3 | +9 [+9, +9] | 0 | 0 |" in line
    assert "| **holds** | in 3 of 3 seeds |" in line
    assert "| not testable here | needs WMT |" in verdict_line(tmp_path, "translates well")
    assert "6 records" in report(tmp_path)


def test_cells_that_are_not_of_the_plan_do_not_count(run, tmp_path):
    run()
    stale = cell("high", 0, lambda: {"score": -100.0}, lam=7)
    record_store(tmp_path / "quick.jsonl").add(run_cell(stale))
    run("--report-only")
    assert "→ 11.0 ± 1.0 | 3 |" in verdict_line(tmp_path, "the score rises")


def test_the_report_stands_without_any_record_and_shows_the_earlier_ones(tmp_path):
    target = tmp_path / "REPRODUCTION.md"
    whole = reproduce.SUITES["whole"]
    reproduce.write_reproduction(whole, tmp_path / "none", target)
    head, papers = report(tmp_path).split("## 000")
    assert "all-MiniLM-L6-v2" in head
    assert all(f"## {paper}" in papers for paper in reproduce.PAPERS if paper != "000")
    assert not any(word in papers for word in ("**holds**", "**fails**", "not shown"))
    assert "waiting" in papers
    assert "## Earlier" not in papers
    reproduce.write_reproduction(whole, reproduce.RESULTS, target)
    _, earlier = report(tmp_path).split("## Earlier: bases of 2,000 rows")
    assert "| I-STAR lam=-1 | 3 |" in earlier
    assert "verdict |" not in earlier


@pytest.mark.parametrize("options", [["--model", "bert-base-cased"], ["--data", "hub"]])
def test_another_encoder_or_source_does_not_touch_the_report(options, capsys):
    with pytest.raises(SystemExit):
        reproduce.main(options)
    assert "need --out" in capsys.readouterr().err


def test_the_report_names_another_encoder(tmp_path):
    options = ["--model", "bert-base-cased", "--data", "hub", "--suite", "whole"]
    assert reproduce.main([*options, "--report-only", "--out", str(tmp_path)]) == 0
    assert "The encoder is bert-base-cased, fine-tuned" in report(tmp_path)
    assert "the published figures are another encoder's" in report(tmp_path)


# --- Gaussian points -------------------------------------------------------------------------


def test_figure_2_of_002_shows_the_bias_of_few_points(monkeypatch):
    monkeypatch.setattr(istar_scores, "SIZES", (64, 700, 2_000))
    settings = {"sizes": istar_scores.SIZES, "shrinkage": 5_000}
    records = [
        run_cell(
            replace(istar_scores.cell(seed), run=partial(istar_scores.scores, seed, **settings))
        )
        for seed in range(3)
    ]
    too_low, with_zeta, _, corrected = (claim.judge(records) for claim in istar_scores.claims())
    assert [item.outcome for item in (too_low, with_zeta, corrected)] == [HOLDS] * 3
    assert "n=64: 0.07" in too_low.ours  # PENALTIES: 0.074 ± 0.002
    assert "| 2,000 |" in istar_scores.tables(records)
    lost = {**records[0], "seed": 3, "error": "ValueError: out of luck"}
    del lost["figures"]
    judged = [claim.judge([*records, lost]) for claim in istar_scores.claims()]
    assert judged[0].outcome == NOT_SHOWN
    assert {item.n_seeds for item in judged} == {3}
