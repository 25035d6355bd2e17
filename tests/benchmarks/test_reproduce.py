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
from benchmarks.reproduction._verdicts import gains, mean_sd, moves, stays, verdict

PAPER = "003"
LOW, HIGH = ({"paper": PAPER, "name": name, "task": "cola"} for name in ("low", "high"))


def cell(name="low", seed=0, run=lambda: {"score": 1.0}, decides=0, **settings):
    return Cell(PAPER, name, "cola", seed, settings, run, decides)


def record(name, seed, **figures):
    return run_cell(cell(name, seed, lambda: figures))


def failed(name, seed):
    return {**cell(name, seed).fields(), "error": "ValueError: out of luck"}


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


def test_a_figure_that_is_not_finite_is_none_however_deep():
    figures = {"score": float("nan"), "layers": [1.0, float("inf"), [float("nan")]]}
    assert record("low", 0, **figures)["figures"] == {"score": None, "layers": [1.0, None, [None]]}


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


def test_a_report_appears_before_the_last_cell(run, runs, monkeypatch, tmp_path):
    monkeypatch.setattr(reproduce, "CELLS_BETWEEN_REPORTS", 2)
    seen = []
    run_missing = reproduce.run_missing

    def watched(*arguments):
        for found in run_missing(*arguments):
            yield found
            seen.append((tmp_path / "REPRODUCTION.md").exists())

    monkeypatch.setattr(reproduce, "run_missing", watched)
    assert run() == 0
    assert seen == [False, True, True, True, True, True]


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


def test_the_cost_of_a_fine_tuning_is_learnt_from_those_that_were_run():
    def past(paper, name, seconds, cached):
        fields = {"paper": paper, "name": name, "task": "cola"}
        return {**fields, "seconds": seconds, "cached": cached}

    finished = [past("000", "base", 0.01, True), past("002", "base", 100.0, False)]
    fresh = Cell("000", "selected bars", "cola", 0, {}, dict)
    assert reproduce.expected_seconds(fresh, finished) == 100.0
    assert reproduce.expected_seconds(replace(fresh, cached=lambda: True), finished) == 0.01
    assert reproduce.expected_seconds(fresh, finished[:1]) == 0.0
    own = past("000", "selected bars", 300.0, False)
    assert reproduce.expected_seconds(fresh, [*finished, own]) == 300.0


def test_a_record_tells_whether_its_fine_tuning_was_kept_already():
    kept = []
    again = replace(cell(run=lambda: kept.append(1) or {"score": 1.0}), cached=lambda: bool(kept))
    assert [run_cell(again)["cached"] for _ in range(2)] == [False, True]


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
    shown = "2.0 ± 1.0 → 11.0 ± 1.0"
    assert f"{shown} | 3 | cpu | **holds** | in 3 of 3 seeds, by a factor of 5.5" in line
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
    assert "→ 11.0 ± 1.0 | 3 |" in verdict_line(tmp_path, "the score rises")


@pytest.mark.parametrize("suite", [CPU, GPU])
def test_two_seeds_never_decide(suite):
    assert verdict(Judged("", True, 2), suite) == "smoke only"
    assert verdict(Judged("", True, 3), suite) == "**holds**"
    assert verdict(Judged("", False, 3), suite) == "**fails**"


def test_other_verdicts():
    assert verdict(Judged("", True, 5), QUICK) == "smoke only"
    assert verdict(Judged("", None, 2), CPU) == "smoke only"
    assert verdict(Judged("", None, 3), CPU) == "not shown"
    assert verdict(NOT_RUN, CPU) == "not run"
    assert verdict(not_testable("needs GPT-2")([]), CPU) == "not testable here"


def test_a_larger_suite_that_does_not_show_it_is_not_hidden_by_a_smaller_one_that_does(
    run, runs, tmp_path, monkeypatch
):
    (paper,) = reproduce.PAPERS[PAPER]
    gain = Claim(PAPER, "table 1", "the score gains", "1 → 2", gains(LOW, HIGH, "score"))
    monkeypatch.setattr(paper, "claims", lambda: [gain])
    run()
    assert "| cpu | **holds** |" in verdict_line(tmp_path, "the score gains")
    steps = [5.0, -1.0, 3.0, -2.0, 1.0]
    large = rising([1.0] * 5, [1 + step for step in steps])
    (tmp_path / "gpu.jsonl").write_text("".join(json.dumps(item) + "\n" for item in large))
    run()
    assert "| gpu | not shown | +1.2, p = 0.2" in verdict_line(tmp_path, "the score gains")


def test_a_judge_that_fails_is_named_and_the_report_stands(run, runs, tmp_path, monkeypatch):
    def broken(records):
        raise TypeError("no such figure")

    (paper,) = reproduce.PAPERS[PAPER]
    claims = [*paper.claims(), Claim(PAPER, "table 3", "it breaks", "–", broken)]
    monkeypatch.setattr(paper, "claims", lambda: claims)
    assert run() == 0
    line = verdict_line(tmp_path, "it breaks")
    assert "| not shown | could not be judged: TypeError: no such figure |" in line
    assert "**holds**" in verdict_line(tmp_path, "the score rises")


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


def test_only_seeds_that_have_run_both_conditions_count():
    judge = moves(LOW, HIGH, "score", 1)
    assert judge(rising([1, 1, 1], [2])).n_seeds == 1
    assert judge(rising([1, 1, 1], [])) == NOT_RUN
    assert judge([*rising([1, 1], [2]), cell("high", 1).fields()]).n_seeds == 1


@pytest.mark.parametrize("lost", [lambda: record("high", 2, score=None), lambda: failed("high", 2)])
def test_a_seed_that_failed_or_has_no_figure_has_not_moved(lost):
    found = [*rising([1, 1, 1], [2, 2]), lost()]
    judged = moves(LOW, HIGH, "score", 1)(found)
    assert (judged.holds, judged.n_seeds) == (False, 3)
    assert judged.reason == "in 2 of 3 seeds, 1 undefined, by a factor of 2"
    assert "(1 undefined)" in judged.ours
    judged = gains(LOW, HIGH, "score")(found)
    assert (judged.holds, judged.n_seeds) == (None, 3)
    assert "1 of 3 seeds undefined" in judged.reason
    none = [failed("high", seed) for seed in range(3)]
    assert gains(LOW, HIGH, "score")([*rising([1, 1, 1], []), *none]).holds is False
    assert moves(LOW, HIGH, "score", 1)([*rising([1, 1, 1], []), *none]).ours.endswith("undefined)")


def test_what_has_nothing_to_lose_is_not_judged():
    judge = moves(LOW, HIGH, "score", -1, by=2.0)
    assert judge(rising([0, 0.1, -0.1], [-0.2, 0, -0.3])).holds is None
    to_nothing = judge(rising([0.5, 0.4, 0.5], [0, 0, 0]))
    assert to_nothing.holds
    assert "inf" not in to_nothing.reason
    assert not judge(rising([0.5, 0.5, 0.5], [0.499, 0.499, 0.499])).holds


def test_staying_is_asked_of_every_seed():
    judge = stays(LOW, HIGH, "score", lambda before, after: abs(after - before), 0.1)
    assert judge(rising([1, 1, 1], [1.05, 0.95, 1])).holds
    cancelling = judge(rising([1, 1, 1], [1.3, 0.7, 1]))
    assert not cancelling.holds
    assert cancelling.reason == "in 1 of 3 seeds, largest change 0.3"
    assert not judge([*rising([1, 1, 1], [1, 1]), failed("high", 2)]).holds


def test_a_gain_must_pass_a_paired_test():
    judge = gains(LOW, HIGH, "score")
    assert judge(rising([0.1, 0.5, 0.9], [0.2, 0.61, 0.99])).holds  # spread cancels in pairs
    assert judge(rising([0.5, 0.5, 0.5], [0.9, 0.4, 0.6])).holds is None  # there, but unsure
    assert judge(rising([0.5, 0.5, 0.5], [0.4, 0.41, 0.4])).holds is False
    assert judge(rising([0.5, 0.5], [0.6, 0.6])).holds is None
    assert judge(rising([0.5] * 3, [0.5] * 3)).holds is False
    assert judge(rising([0.5] * 3, [0.6] * 3)).holds


def test_the_choice_of_the_best_of_several_is_paid_for():
    found = rising([0.1, 0.5, 0.9], [0.2, 0.61, 0.99])  # p = 0.0017
    assert gains(LOW, HIGH, "score", choices=7)(found).holds
    judged = gains(LOW, HIGH, "score", choices=40)(found)
    assert judged.holds is None
    assert "times 40 for the choice" in judged.reason


def test_means_are_shown_with_their_spread():
    assert mean_sd([0.12345]) == "0.1235"
    assert mean_sd([1.0, 2.0, 3.0]) == "2.0 ± 1.0"
    assert mean_sd([]) == "–"
    assert mean_sd([float("nan")]) == "– (1 undefined)"
    assert mean_sd([0.5, float("nan")]) == "0.5 (1 undefined)"


@pytest.mark.parametrize(
    ("mean", "sd", "text"),
    [
        (75.77, 11.0, "76 ± 11"),
        (1234.5, 234.0, "1234 ± 234"),
        (0.11432, 0.0082, "0.1143 ± 0.0082"),
        (0.003199, 0.0004, "0.00320 ± 0.00040"),
        (0.86431, 0.00003, "0.8643 ± 0.000030"),
        (0.0, 0.02, "0.000 ± 0.020"),
        (0.6913, 1e-16, "0.6913 ± 0"),
        (6.39e-05, 9e-05, "6.4e-05 ± 9e-05"),
    ],
)
def test_the_spread_decides_how_many_digits_are_shown(mean, sd, text):
    assert mean_sd([mean - sd, mean, mean + sd]) == text


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
    lost = {**records[0], "seed": 1, "error": "ValueError: out of luck"}
    del lost["figures"]
    judged = [claim.judge([*records, lost]) for claim in paper002_scores.claims()]
    assert not any(item.holds for item in judged)
    assert {item.n_seeds for item in judged} == {2}
    records[0]["figures"]["zeta 0"][1] = None
    assert not paper002_scores.claims()[0].judge(records).holds
    assert "– (1 undefined)" in paper002_scores.tables(records)


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


def test_a_curve_of_003_with_a_gap_is_not_lower():
    curves = {"low": [0.9] * 20, "high": [0.5] * 20}
    records = [
        {**record("", 0, explained_variance=curves[kind]), "name": name, "seed": seed}
        for seed in range(3)
        for name, kind in ((paper003.BASE, "low"), (paper003.MINIBATCH, "high"))
    ]
    judge = next(item for item in paper003.claims() if "every k" in item.claim).judge
    assert judge(records).holds
    records[-1] = {**records[-1], "figures": {"explained_variance": [0.5] * 19 + [None]}}
    judged = judge(records)
    assert judged.holds is False
    assert judged.reason == "in 2 of 3 seeds, 1 undefined"
    del records[-1]["figures"]
    assert judge(records).n_seeds == 2
    assert judge([*records[:-1], {**records[-1], "error": "out of luck"}]).n_seeds == 3


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
