import json
from importlib.util import find_spec

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.speed import _harness, isoscore
from benchmarks.speed._harness import Comparison, Measurement, Skipped, as_result, compare, measure
from benchmarks.speed._report import duration, speed_markdown, speed_text
from benchmarks.speed._running import module_of, names, run_apart, run_one


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when a callable says so."""

    class Clock:
        now = 0.0

        def spend(self, seconds, calls=None, name=None):
            def call():
                self.now += seconds
                if calls is not None:
                    calls.append(name)

            return call

    clock = Clock()
    monkeypatch.setattr(_harness.time, "perf_counter", lambda: clock.now)
    return clock


def test_compare_alternates_after_a_warm_up(clock):
    calls = []
    result = compare(
        "twice",
        clock.spend(1.0, calls, "ours"),
        clock.spend(2.0, calls, "reference"),
        repeats=3,
        target=2.0,
        n=5,
    )
    assert calls == ["ours", "reference"] * 2 + ["reference", "ours"] + ["ours", "reference"]
    assert result.ours_s == (1.0,) * 3
    assert result.reference_s == (2.0,) * 3
    assert (result.ratio, result.quartiles, result.met) == (2.0, (2.0, 2.0), True)
    assert result.facts == {"n": 5}


def test_ratio_is_the_median_over_pairs():
    result = Comparison("pairs", (1.0, 2.0, 4.0), (3.0, 2.0, 8.0), target=2.5)
    assert result.ratios == (3.0, 1.0, 2.0)
    assert (result.ours, result.reference, result.ratio) == (2.0, 3.0, 2.0)
    assert result.quartiles == (1.5, 2.5)
    assert result.met is False
    assert Comparison("free", (1.0,), (1.0,)).met is None


def test_measure_leaves_out_the_warm_up(clock):
    calls = []
    result = measure("alone", clock.spend(0.5, calls, "call"), 4, d=3)
    assert len(calls) == 5
    assert (result.seconds, result.ours, result.facts) == ((0.5,) * 4, 0.5, {"d": 3})


def test_no_repeats_is_an_error(clock):
    with pytest.raises(ValueError, match="repeats=0"):
        compare("none", clock.spend(1), clock.spend(1), repeats=0)
    with pytest.raises(ValueError, match="repeats=0"):
        measure("none", clock.spend(1), 0)


def test_garbage_collector_is_off_only_while_measuring():
    states = []
    measure("gc", lambda: states.append(_harness.gc.isenabled()), 2)
    assert states == [True, False, False]
    assert _harness.gc.isenabled()


def test_mappings_become_comparisons():
    found = as_result({"name": "x", "ours_s": [1.0], "reference_s": [2.0], "n": 7, "target": 1.5})
    assert found == Comparison("x", (1.0,), (2.0,), 1.5, {"n": 7})
    assert as_result(found) is found


def test_tables_show_every_kind_of_result():
    results = [
        Comparison("fast", (1e-3,), (0.5,), 30.0, {"n": 64, "d": 8, "threads": 2}),
        Measurement("alone", (2.0,), {"n": 9}),
        Skipped("absent", "no package"),
    ]
    head, rule, fast, alone, skipped = speed_text(results).splitlines()
    assert " ".join(head.split()) == "name threads n d ours reference ratio [IQR] target met"
    assert set(rule) == {"-", " "}
    assert " ".join(fast.split()) == "fast 2 64 8 1 ms 500 ms 500 [500, 500] ≥ 30.00 yes"
    assert " ".join(alone.split()) == "alone 9 2 s"
    assert skipped == "skipped absent: no package"
    assert "| fast | 2 | 64 | 8 | 1 ms |" in speed_markdown(results, {"numpy": "1"})


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.0, "2 s"), (0.0123, "12.3 ms"), (45e-6, "45 µs"), (0.0, "0 µs")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_command_writes_results_and_goes_on_after_a_failure(tmp_path, monkeypatch, capsys):
    def run_apart(name, quick):
        if name == "import":
            raise RuntimeError("broken")
        return [Comparison(name, (1.0,), (2.0,), 1.5)]

    monkeypatch.setattr(command, "run_apart", run_apart)
    results = tmp_path / "RESULTS.md"
    options = ["--quick", "--only", "import", "isoscore", "--out", str(tmp_path / "new")]
    assert command.main([*options, "--write", str(results)]) == 1
    written = json.loads((tmp_path / "new" / "bench.json").read_text("utf-8"))
    assert written["failed"] == ["import"]
    assert written["results"][0]["ratio"] == 2.0
    assert "numpy" in written["versions"]
    assert "| isoscore |" in results.read_text("utf-8")
    assert "broken" in capsys.readouterr().err


def test_a_benchmark_runs_in_a_process_of_its_own():
    with pytest.raises(ModuleNotFoundError, match=r"benchmarks\.speed\.absent") as raised:
        run_apart("absent", quick=True)
    assert type(raised.value.__cause__).__name__ == "_RemoteTraceback"


def test_every_name_is_that_of_a_module():
    assert {"encoding", "import", "isoscore", "minibatch"} <= set(names())
    assert "gpu" not in names()
    assert all(find_spec(module_of(name)) for name in names())


def test_threads_are_those_of_the_process_unless_the_benchmark_says(monkeypatch):
    found = [
        Comparison("limited", (1.0,), (2.0,), facts={"threads": 1}),
        Measurement("free", (1.0,)),
        Skipped("absent", "no package"),
    ]
    monkeypatch.setattr(isoscore, "run", lambda quick: found)
    limited, free, skipped = run_one("isoscore", quick=True)
    assert (limited.facts["threads"], free.facts["threads"]) == (1, torch.get_num_threads())
    assert skipped == found[2]
