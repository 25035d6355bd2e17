"""The benchmark of faults: a few of each kind, and a fault that it must report."""

import pytest

from benchmarks.faults import __main__ as faults

NONE = [f"--{name}=0" for name in faults.COUNTS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "lines"),
    [("--merge-kills=2", ["kills of merges"]), ("--interrupts=7", ["interrupts of fits"])],
)
def test_a_few_of_a_kind(option, lines, capsys):
    assert faults.main([*NONE, option]) == 0
    found = capsys.readouterr().out.splitlines()[2:]
    assert len(found) == len(lines)
    for line, start in zip(found, lines, strict=True):
        _, tried, times, counts, _ = (cell.strip() for cell in line.split("|"))
        assert tried.startswith(start)
        assert int(times) >= int(option.partition("=")[2])
        assert {part.split()[0] for part in counts.split(", ")} == {"0"}


def test_a_fault_is_reported(monkeypatch, capsys):
    counts = {"calls": 5, "checked": 50, "wrong": 1, "problems": 0, "set_aside": False}
    monkeypatch.setattr(faults, "_run", lambda *arguments: counts)
    assert faults.main([*NONE, "--calls=5"]) == 1
    assert "1 wrong" in capsys.readouterr().out
