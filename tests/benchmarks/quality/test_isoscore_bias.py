import re

import pytest

from benchmarks.quality import isoscore_bias


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(isoscore_bias, "DRAWS", 200)


def test_the_bias_of_the_corrected_score_is_smaller_and_falls_with_more_rows(few_draws, tmp_path):
    path = tmp_path / "RESULTS.md"
    arguments = ["--rows", "5", "40", "--widths", "6", "--decays", "1", "--write", str(path)]
    assert isoscore_bias.main(arguments) == 0
    lines = [line for line in path.read_text().splitlines() if re.match(r"\| (Gaussian|t₅) ", line)]
    assert len(lines) == 2
    for line in lines:
        true, *cells = line.strip("| ").split(" | ")[3:]
        few, many = ([float(x) for x in re.findall(r"[\d.]+", cell)] for cell in cells)
        for corrected, plain in (few, many):
            assert abs(corrected - float(true)) < abs(plain - float(true))
        assert abs(many[0] - float(true)) < abs(few[0] - float(true))


@pytest.mark.parametrize("arguments", [["--rows", "3"], ["--widths", "1"]])
def test_too_few_rows_or_dimensions_are_refused(arguments):
    with pytest.raises(SystemExit):
        isoscore_bias.main(arguments)
