import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import reproduce
from benchmarks._data import narrow_cone
from benchmarks.reproduction import paper002_scores, paper003
from benchmarks.reproduction._cells import (
    CPU,
    GPU,
    NOT_RUN,
    QUICK,
    Cell,
    Claim,
    Judged,
    not_testable,
)
from benchmarks.reproduction._report import suite_cells
from benchmarks.reproduction._store import append_record, read_records, run_cell
from benchmarks.reproduction._verdicts import gains, mean_sd, moves, verdict

PAPER = "003"
LOW, HIGH = ({"paper": PAPER, "name": name, "task": "cola"} for name in ("low", "high"))


def cell(name="low", seed=0, run=lambda: {"score": 1.0}, decides=0, **settings):
    return Cell(PAPER, name, "cola", seed, settings, run, decides)


def record(name, seed, **figures):
    return run_cell(cell(name, seed, lambda: figures))


def rising(low, high):
    """Records of the figure `score` under two conditions, an entry for each seed."""
    values = [("low", low), ("high", high)]
    return [
        record(name, seed, score=score)
        for name, scores in values
        for seed, score in enumerate(scores)
    ]


@pytest.fixture
def runs(monkeypatch):
    """Two conditions of a made-up paper; the list tells which cells ran, the set which fail."""
    ran, failing = [], set()

    def make(name, seed, score):
        def run():
            ran.append((name, seed))
            if (name, seed) in failing:
                raise failing_with[0]
            return {"score": score + seed}

        return cell(name, seed, run)

    failing_with = [ValueError("out of\nluck")]
    paper = SimpleNamespace(
        cells=lambda suite: [
            make(name, seed, score)
            for seed in range(suite.seeds)
            for name, score in (("low", 1.0), ("high", 10.0))
        ],
        claims=lambda: [
            Claim(PAPER, "table 1", "the score rises", "1 → 2", moves(LOW, HIGH, "score", 1)),
            Claim(PAPER, "table 2", "translates well", "30 BLEU", not_testable("needs WMT")),
        ],
        tables=lambda records: f"{len(records)} records" if records else "",
    )
    monkeypatch.setattr(reproduce, "PAPERS", {PAPER: (paper,)})
    return SimpleNamespace(ran=ran, failing=failing, failing_with=failing_with)


@pytest.fixture
def run(runs, tmp_path):
    def run(*options, suite="cpu"):
        return reproduce.main(["--suite", suite, "--out", str(tmp_path), *options])

    return run


def lines(tmp_path, suite="cpu"):
    return [json.loads(line) for line in (tmp_path / f"{suite}.jsonl").read_text().splitlines()]


def report(tmp_path):
    return (tmp_path / "REPRODUCTION.md").read_text("utf-8")


def verdict_line(tmp_path, claim):
    return next(line for line in report(tmp_path).splitlines() if line.startswith(f"| {claim}"))


# --- keys ------------------------------------------------------------------------------------


def test_a_key_is_the_same_whatever_the_order_of_the_settings():
    first, second = cell(lam=-1.0, rows=[1, 2]), cell(rows=[1, 2], lam=-1.0)
    assert first.key == second.key == "003/low/cola/0/975a2d2883b4"


def test_a_key_changes_with_everything_that_changes_the_result():
    base = cell(lam=-1.0)
    others = [
        cell(lam=1.0),
        cell(),
        cell("high", lam=-1.0),
        cell(seed=1, lam=-1.0),
        replace(base, task="rte"),
        replace(base, paper="002"),
    ]
    assert len({base.key, *(other.key for other in others)}) == 7
    assert replace(base, decides=3).key == base.key


# --- running ---------------------------------------------------------------------------------


def test_all_seeds_of_a_condition_come_together_and_what_decides_first_is_first():
    cells = [
        cell(name, seed, decides=rank)
        for seed in (1, 0)
        for name, rank in (("later", 2), ("a", 1), ("b", 1))
    ]
    paper = SimpleNamespace(cells=lambda suite: cells)
    order = [(item.name, item.seed) for item in suite_cells({PAPER: (paper,)}, CPU)]
    assert order == [(name, seed) for name in ("a", "b", "later") for seed in (0, 1)]


def test_finished_cells_are_not_run_again(run, runs, tmp_path):
    assert run() == 0
    assert runs.ran == [(name, seed) for name in ("low", "high") for seed in range(3)]
    first = lines(tmp_path)
    assert run() == 0
    assert len(runs.ran) == 6
    assert lines(tmp_path) == first


def test_a_record_tells_what_ran_and_under_which_versions(run, tmp_path):
    run()
    found = lines(tmp_path)[-1]
    assert found["key"].startswith("003/high/cola/2/")
    assert (found["paper"], found["name"], found["task"], found["seed"]) == (
        "003",
        "high",
        "cola",
        2,
    )
    assert found["figures"] == {"score": 12.0}
    assert found["seconds"] >= 0
    assert {"torch", "transformers", "isoadapt", "torch_threads"} <= set(found["versions"])


def test_after_a_kill_in_the_middle_of_a_line_that_cell_runs_again(run, runs, tmp_path):
    run()
    file = tmp_path / "cpu.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    runs.ran.clear()
    assert run() == 0
    assert runs.ran == [("high", 2)]
    assert len(lines(tmp_path)) == 6


def test_a_line_that_is_no_cell_is_named(run, tmp_path):
    (tmp_path / "cpu.jsonl").write_text("nonsense\n")
    with pytest.raises(ValueError, match=r"cpu\.jsonl, line 1 holds no cell"):
        run()


def test_a_failed_cell_is_reported_and_tried_again_and_stops_no_other(run, runs, tmp_path):
    runs.failing.add(("low", 1))
    assert run() == 1
    assert len(runs.ran) == 6
    assert "003/low/cola/1/" in report(tmp_path)
    assert "ValueError: out of luck" in report(tmp_path)
    runs.failing.clear()
    runs.ran.clear()
    assert run() == 0
    assert runs.ran == [("low", 1)]
    assert "out of luck" not in report(tmp_path)


def test_figures_that_json_cannot_hold_fail_the_cell():
    assert "TypeError" in run_cell(cell(run=lambda: {"score": np.ones(2)}))["error"]


def test_ctrl_c_keeps_what_is_finished_and_writes_the_report(run, runs, tmp_path):
    runs.failing.add(("low", 2))
    runs.failing_with[0] = KeyboardInterrupt()
    assert run() == 130
    assert [found["seed"] for found in lines(tmp_path)] == [0, 1]
    assert "2 of 6" in report(tmp_path)


def test_a_report_that_fails_in_between_does_not_end_the_run(run, runs, monkeypatch):
    monkeypatch.setattr(reproduce, "CELLS_BETWEEN_REPORTS", 1)
    write, broken = reproduce.write_report, [OSError("disk full")]

    def write_report(*arguments):
        if broken:
            raise broken.pop()
        write(*arguments)

    monkeypatch.setattr(reproduce, "write_report", write_report)
    assert run() == 0
    assert len(runs.ran) == 6


def test_no_budget_starts_nothing_but_writes_the_report(run, runs, tmp_path):
    assert run("--budget", "0") == 0
    assert runs.ran == []
    assert not (tmp_path / "cpu.jsonl").exists()
    assert "not run" in verdict_line(tmp_path, "the score rises")


def test_a_cell_that_would_outlast_the_budget_is_not_begun(run, runs, tmp_path):
    run("--budget", "60")
    costly = [
        {**found, "seconds": 7200.0} if found["name"] == "low" else found
        for found in lines(tmp_path)
        if found["seed"] == 0
    ]
    (tmp_path / "cpu.jsonl").write_text("".join(json.dumps(found) + "\n" for found in costly))
    runs.ran.clear()
    run("--budget", "60")
    assert runs.ran == [("high", 1), ("high", 2)]


def test_only_the_papers_asked_for_are_run(run, runs, monkeypatch, tmp_path):
    other = SimpleNamespace(
        cells=lambda suite: [Cell("004", "x", "cola", 0, {}, lambda: {"score": 0.0})],
        claims=list,
        tables=lambda records: "",
    )
    monkeypatch.setattr(reproduce, "PAPERS", {**reproduce.PAPERS, "004": (other,)})
    assert run("--only", "004") == 0
    assert runs.ran == []
    assert [found["paper"] for found in lines(tmp_path)] == ["004"]


def test_a_negative_budget_is_refused(run, capsys):
    with pytest.raises(SystemExit):
        run("--budget", "-1")
    assert "--budget -1.0 must be 0 or more" in capsys.readouterr().err


# --- the report ------------------------------------------------------------------------------


def test_three_seeds_decide(run, tmp_path):
    run()
    line = verdict_line(tmp_path, "the score rises")
    assert "2 ± 1 → 11 ± 1 | 3 | cpu | **holds** | in 3 of 3 seeds, by a factor of 5.5" in line
    assert "| not testable here | needs WMT |" in verdict_line(tmp_path, "translates well")
    assert "6 records" in report(tmp_path)


def test_the_quick_suite_decides_nothing_and_yields_to_a_larger_one(run, tmp_path):
    run(suite="quick")
    assert "| quick | smoke only |" in verdict_line(tmp_path, "the score rises")
    run(suite="gpu")
    assert "| 5 | gpu | **holds** |" in verdict_line(tmp_path, "the score rises")
    assert "2 records" in report(tmp_path)


def test_cells_that_the_suite_no_longer_has_do_not_count(run, tmp_path):
    run()
    stale = cell("high", 0, lambda: {"score": -100.0}, lam=7)
    append_record(tmp_path / "cpu.jsonl", run_cell(stale))
    run()
    assert "→ 11 ± 1 | 3 |" in verdict_line(tmp_path, "the score rises")


@pytest.mark.parametrize("suite", [CPU, GPU])
def test_two_seeds_never_decide(suite):
    assert verdict(Judged("", True, 2), suite) == "smoke only"
    assert verdict(Judged("", True, 3), suite) == "**holds**"
    assert verdict(Judged("", False, 3), suite) == "**fails**"


def test_other_verdicts():
    assert verdict(Judged("", True, 5), QUICK) == "smoke only"
    assert verdict(Judged("", None, 3), CPU) == "smoke only"
    assert verdict(NOT_RUN, CPU) == "not run"
    assert verdict(not_testable("needs GPT-2")([]), CPU) == "not testable here"


# --- judging ---------------------------------------------------------------------------------


def test_a_direction_must_be_kept_in_every_seed():
    judge = moves(LOW, HIGH, "score", 1)
    assert judge(rising([1, 1, 1], [2, 2, 2])).holds
    assert not judge(rising([1, 1, 1], [2, 9, 0.5])).holds
    assert not moves(LOW, HIGH, "score", -1)(rising([1, 1, 1], [2, 2, 2])).holds
    assert moves(HIGH, LOW, "score", -1)(rising([1, 1, 1], [2, 2, 2])).holds


def test_a_factor_may_be_asked():
    records = rising([1, 1, 1], [1.4, 1.4, 1.4])
    assert moves(LOW, HIGH, "score", 1, by=1.3)(records).holds
    assert not moves(LOW, HIGH, "score", 1, by=1.5)(records).holds


def test_only_seeds_with_both_conditions_count_and_only_numbers():
    judge = moves(LOW, HIGH, "score", 1)
    assert judge(rising([1, 1, 1], [2])).n_seeds == 1
    assert judge(rising([1, 1, 1], [2, 2, float("nan")])).n_seeds == 2
    assert judge(rising([1, 1, 1], [])) == NOT_RUN


def test_a_gain_must_pass_a_paired_test():
    judge = gains(LOW, HIGH, "score")
    assert judge(rising([0.1, 0.5, 0.9], [0.2, 0.61, 0.99])).holds  # spread cancels in pairs
    assert not judge(rising([0.5, 0.5, 0.5], [0.9, 0.4, 0.6])).holds
    assert not judge(rising([0.5, 0.5, 0.5], [0.4, 0.41, 0.4])).holds
    assert judge(rising([0.5, 0.5], [0.6, 0.6])).holds is None
    assert not judge(rising([0.5] * 3, [0.5] * 3)).holds


def test_means_are_shown_with_their_spread():
    assert mean_sd([0.12345]) == "0.1235"
    assert mean_sd([1.0, 2.0, 3.0]) == "2 ± 1"
    assert mean_sd([]) == "–"


# --- the papers ------------------------------------------------------------------------------


def test_figure_2_of_002_shows_the_bias_of_few_points(monkeypatch):
    monkeypatch.setattr(paper002_scores, "SIZES", (64, 700, 2_000))
    settings = {"sizes": paper002_scores.SIZES, "shrinkage": 5_000}
    records = [
        run_cell(replace(item, run=lambda: paper002_scores.scores(0, **settings)))
        for item in paper002_scores.cells(QUICK)
    ]
    too_low, with_zeta, _, corrected = (claim.judge(records) for claim in paper002_scores.claims())
    assert all(judged.holds for judged in (too_low, with_zeta, corrected))
    assert "n=64: 0.07" in too_low.ours  # METHODS: 0.074 ± 0.002
    assert "| 2,000 |" in paper002_scores.tables(records)


def test_the_rows_of_003_on_synthetic_embeddings(monkeypatch):
    monkeypatch.setattr(paper003, "base_embeddings", lambda *_: narrow_cone(240, 24, seed=0))
    records = [run_cell(item) for item in paper003.cells(QUICK)]
    assert [item["name"] for item in records] == list(paper003.NAMES)
    assert all(len(item["figures"]["explained_variance"]) == 20 for item in records)
    judged = {claim.claim: claim.judge(records) for claim in paper003.claims()}
    assert judged["CoLA: the layer raises IsoScore"].holds
    assert judged["CoLA: the layer lowers EV1"].holds
    assert judged["MRPC: the layer lowers EV1"] == NOT_RUN
    text = paper003.tables(records)
    assert all(f"| {name} |" in text for name in paper003.NAMES)


def test_the_median_model_of_003_is_the_one_with_median_ev1():
    fields = {"paper": PAPER, "name": "low", "task": "cola"}
    curves = [[0.9, 0.91, 0.92], [0.5, 0.6, 0.7], [0.7, 0.8, 0.9]]
    records = [record("low", seed, explained_variance=curve) for seed, curve in enumerate(curves)]
    assert paper003._median_ev(records, fields) == "0.700/0.800/0.900"


def test_the_report_stands_without_any_record(tmp_path):
    suites = list(reproduce.SUITES.values())
    target = tmp_path / "REPRODUCTION.md"
    reproduce.write_report(reproduce.PAPERS, suites, tmp_path / "none", target)
    head, papers = report(tmp_path).split("## 000")
    assert "all-MiniLM-L6-v2" in head
    assert all(f"## {paper}" in papers for paper in reproduce.PAPERS if paper != "000")
    assert not any(word in papers for word in ("**holds**", "**fails**", "smoke only"))
    assert "not run" in papers
    assert read_records(tmp_path / "quick.jsonl") == []


@pytest.mark.parametrize("options", [["--model", "bert-base-cased"], ["--data", "hub"]])
def test_another_encoder_or_source_does_not_touch_the_report(options, capsys):
    with pytest.raises(SystemExit):
        reproduce.main(options)
    assert "need --out" in capsys.readouterr().err


def test_the_report_names_another_encoder(run, tmp_path):
    options = ["--model", "bert-base-cased", "--data", "hub"]
    assert reproduce.main([*options, "--budget", "0", "--out", str(tmp_path)]) == 0
    assert "The encoder is bert-base-cased, fine-tuned" in report(tmp_path)
    assert "--suite cpu --model bert-base-cased --data hub`" in report(tmp_path)
