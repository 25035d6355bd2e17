"""How two callables are timed, the stored figures, and the checks of a GPU on a pretended one."""

from functools import partial

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.speed import _harness, gpu
from benchmarks.speed._harness import compare
from isoadapt.encoders import release
from tests.pretended_cuda import UNAVAILABLE, pretended_cuda
from tests.stored_results import SPEED


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


def test_the_results_are_those_of_the_records():
    records = list(command.records().entries())
    assert {record["benchmark"] for record in records} == set(_harness.names())
    section = f"<!-- bench:begin -->\n{command.text(records)}\n<!-- bench:end -->"
    assert section in SPEED.read_text("utf-8")


@pytest.mark.slow
@pytest.mark.skipif(bool(UNAVAILABLE), reason=UNAVAILABLE)
@pytest.mark.parametrize("part", gpu.PARTS, ids=lambda part: part.__name__)
def test_each_part_runs_and_finds_the_devices_agree(part, checkpoint, monkeypatch):
    monkeypatch.setenv("ISOADAPT_MODEL", str(checkpoint))
    with pretended_cuda():
        assert list(part(torch.device("cuda"), True))
        release()
