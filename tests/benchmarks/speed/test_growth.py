"""The table of growth: which cells run, what is kept, and the exponents."""

import pytest

from benchmarks.speed import growth


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the command with made-up times in place of measurements; return the table's lines."""
    calls = []

    def apart(function, step, n, d):
        calls.append((step, n, d))
        power = 2 if step == "neighbours" else 1
        return {"cpu_s": (n / 1e4) ** power, "wall_s": 2.0, "peak_mb": 50.0}

    monkeypatch.setattr(growth, "RECORDS", tmp_path / "growth.jsonl")
    monkeypatch.setattr(growth, "apart", apart)

    def command(*options):
        calls.clear()
        assert growth.main(options) == 0
        return capsys.readouterr().out.splitlines(), list(calls)

    return command


def test_cells_run_once_and_those_that_take_too_long_are_named(run):
    lines, calls = run("--limit", "150")
    assert len(calls) == len(set(calls)) == 2 * (5 * 3 + 2)
    row = next(line for line in lines if "hubness" in line)
    assert row.count("not run") == 2
    assert "not run (≈ 167 min)" in row
    assert row.endswith("| 2.00, 0.00 |")
    assert next(line for line in lines if "isotropy_report" in line).endswith("| 1.00, 0.00 |")
    assert run("--limit", "150") == (lines, [])
    assert len(run("--limit", "1000")[1]) == 2 * 5
