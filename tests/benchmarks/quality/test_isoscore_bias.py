import numpy as np

from benchmarks.quality import isoscore_bias
from isoadapt.metrics import isoscore


def test_the_bias_of_the_corrected_score_is_smaller_and_falls_with_more_rows(monkeypatch):
    monkeypatch.setattr(isoscore_bias, "DRAWS", 200)
    monkeypatch.setattr(isoscore_bias, "WIDTHS", (6,))
    monkeypatch.setattr(isoscore_bias, "ROWS", (5, 40))
    found = {(decay, kind, n): run() for (_, decay, kind, n), run in isoscore_bias.cells()}
    for kind in isoscore_bias.KINDS:
        few, many = found[1.0, kind, 5], found[1.0, kind, 40]
        for each in (few, many):
            bias = abs(each["corrected"] - each["true"])
            assert bias < abs(each["plain"] - each["true"])
        assert abs(many["corrected"] - many["true"]) < abs(few["corrected"] - few["true"])
    rows = np.random.default_rng(0).normal(size=(200_000, 6)) * np.arange(1, 7) ** -0.5
    assert np.isclose(found[1.0, "Gaussian", 5]["true"], isoscore(rows), atol=0.01)
