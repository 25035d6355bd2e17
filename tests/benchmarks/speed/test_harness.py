"""How two callables are timed, and what the table and the command make of it."""

from functools import partial

import torch

from benchmarks import __main__ as command
from benchmarks.speed import _harness
from benchmarks.speed._harness import Comparison, Skipped, compare
from docs._ext.results import RESULTS

THREADS = torch.get_num_threads()


def test_compare_alternates_after_a_warm_up(monkeypatch):
    now, calls = [0.0], []

    def spend(seconds, name):
        now[0] += seconds
        calls.append(name)

    monkeypatch.setattr(_harness.time, "perf_counter", lambda: now[0])
    functions = partial(spend, 1.0, "ours"), partial(spend, 2.0, "reference")
    result = compare("twice", *functions, repeats=3, target=2.0, n=5)
    assert calls == ["ours", "reference"] * 2 + ["reference", "ours"] + ["ours", "reference"]
    assert (result.ours_s, result.reference_s) == ((1.0,) * 3, (2.0,) * 3)
    assert (result.ratio, result.facts) == (2.0, {"n": 5})


def test_command_goes_on_after_a_failure_and_keeps_what_it_measured(tmp_path, monkeypatch, capsys):
    seconds = 1.0

    def run_apart(name, quick):
        if name == "import":
            raise RuntimeError("broken")
        return [Comparison(name, (seconds,), (2.0,), 1.5), Skipped(name, "no package")]

    monkeypatch.setattr(command, "run_apart", run_apart)
    monkeypatch.setattr(command, "RECORDS", tmp_path / "bench.jsonl")
    results = tmp_path / "RESULTS.md"
    results.write_text("<!-- bench:begin -->\n<!-- bench:end -->\n")
    write = ["--write", str(results)]
    assert command.main(["--only", "import", "isoscore", "audit", *write]) == 1
    assert "broken" in capsys.readouterr().err
    seconds = 4.0
    assert command.main(["--only", "audit", *write]) == 0
    written = results.read_text("utf-8")
    assert f"| audit | {THREADS} |  |  | 4 s | 2 s | 0.50 [0.50, 0.50] | ≥ 1.50 | no |" in written
    assert (
        f"| isoscore | {THREADS} |  |  | 1 s | 2 s | 2.00 [2.00, 2.00] | ≥ 1.50 | yes |" in written
    )
    assert "| isoscore: skipped, no package |" in written
    assert command.main(["--only", "isoscore"]) == 0
    assert "| 4 s |" in capsys.readouterr().out
    assert command.text(command.records().entries()) in written == results.read_text("utf-8")


def test_the_results_are_those_of_the_records():
    records = list(command.records().entries())
    assert {record["benchmark"] for record in records} == set(_harness.names())
    section = f"<!-- bench:begin -->\n\n{command.text(records)}\n\n<!-- bench:end -->"
    assert section in RESULTS.read_text("utf-8")
