"""The examples run; those of the site and the README: tests/docs."""

import functools
import runpy
import sys
from pathlib import Path

import pytest
from matplotlib import pyplot

from isoadapt import datasets
from tests.tiny_models import save_model


# The tokenizer and the corpus are small.
@pytest.mark.filterwarnings("ignore:.*rows to judge on equal rows", "ignore:.*labels have fewer")
@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("quickstart", "after: similarity"),
        ("grid_search", "best: {"),
        ("save_and_load", "same predictions: True"),
        ("own_penalty", "lam=1: IsoScore"),
        pytest.param("classifier_search", "predictions changed: 0 of 204", marks=pytest.mark.slow),
        ("outliers", "10 nearest neighbours, adapted: AUROC"),
        ("audit", "IsoScore"),
        ("repair_and_ship", "same labels: True"),
        pytest.param("compare", "For similarity", marks=pytest.mark.slow),
        pytest.param("serve_onnx", "vectors: (2, 16)", marks=pytest.mark.slow),
        ("finetune_istar", "logged steps: 3"),
        ("anchored_finetuning", "anchored: IsoScore"),
    ],
)
def test_examples_run(example, expected, tmp_path, monkeypatch, capsys):
    folder = save_model(tmp_path / "checkpoint", num_labels=2)
    monkeypatch.chdir(tmp_path)
    corpus = functools.partial(datasets.make_acceptability, 200, 100)
    monkeypatch.setattr(datasets, "make_acceptability", corpus)
    monkeypatch.setattr(pyplot, "show", lambda: None)
    monkeypatch.setattr(sys, "argv", [example, str(folder)])
    path = Path(__file__).parents[1] / "examples" / f"{example}.py"
    runpy.run_path(str(path), run_name="__main__")
    pyplot.close("all")
    assert expected in capsys.readouterr().out
    assert not [*tmp_path.glob("*/README*")]  # beside the examples, a section of the gallery
