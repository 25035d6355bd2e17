"""The runner: resumable at any kill, locked; and the report, bound to the committed records."""

import json
import shutil
from functools import partial

from benchmarks.reproduction import __main__ as reproduce
from benchmarks.reproduction._records import Cell, commit
from benchmarks.reproduction._report import PAGE

ORDER = [(name, seed) for seed in range(3) for name in ("low", "high")]


def test_cells_run_in_order_and_once_and_a_failed_one_stops_no_other(monkeypatch, tmp_path):
    ran, fail = [], {("low", 1)}

    def measure(*key):
        ran.append(key)
        if key in fail:
            raise ValueError("out of\nluck")
        return {"score": float(key[1]), "undefined": float("nan")}

    def run():
        return reproduce.main(["--out", str(tmp_path)])

    def lines():
        return [json.loads(line) for line in (tmp_path / "whole.jsonl").read_text().splitlines()]

    cells = [Cell("fresh", name, "cola", n, {}, partial(measure, name, n)) for name, n in ORDER]
    monkeypatch.setattr(reproduce, "plan", lambda: cells)
    assert run() == 1
    assert ran == ORDER
    assert lines()[2]["error"] == "ValueError: out of luck"
    fail.clear()
    ran.clear()
    assert run() == 0
    assert ran == [("low", 1)]
    before = lines()
    assert run() == 0
    assert lines() == before
    assert before[-1]["figures"] == {"score": 1.0, "undefined": None}
    assert before[-1]["commit"] == commit()
    assert {"torch", "transformers", "isoadapt", "torch_threads"} <= set(before[-1]["versions"])
    assert "waiting" in (tmp_path / PAGE.name).read_text("utf-8")


def test_the_report_follows_from_the_records(tmp_path):
    shutil.copy(reproduce.RECORDS, tmp_path)
    reproduce.main(["--report-only", "--out", str(tmp_path)])
    stale = "the report is stale: run `make reproduction-report`"
    assert (tmp_path / PAGE.name).read_text("utf-8") == PAGE.read_text("utf-8"), stale
