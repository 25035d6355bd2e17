"""The examples and those of the README run."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.tiny_models import save_model


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("quickstart", "no penalty: accuracy"),
        ("grid_search", "best: {"),
        ("save_and_load", "same predictions: True"),
        ("own_penalty", "lam=1: IsoScore"),
    ],
)
def test_examples_run(example, expected, tmp_path, monkeypatch, capsys):
    folder = save_model(tmp_path / "checkpoint", num_labels=2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [example, str(folder)])
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / f"{example}.py"))
    assert expected in capsys.readouterr().out


def test_the_readme_examples_run(tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    save_model(tmp_path / "isoadapt-demo" / "checkpoint", num_labels=2)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in text.split("```python\n")[1:]:
        exec(block.split("```")[0], names)
    assert capsys.readouterr().out.count("IsotropyReport: 1196 × 16") == 2
    assert (tmp_path / "my-merged-model" / "model.safetensors").is_file()
