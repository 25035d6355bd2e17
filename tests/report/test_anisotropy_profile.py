"""AnisotropyProfile: the curves are the log."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")

from isoadapt.report import AnisotropyProfile  # noqa: E402

FIGURES = ("isoscore_star", "anisotropy1", "anisotropy1_centered", "ev1", "task_loss", "penalty")
LOG = [
    {"shrinkage_seconds": 0.1, "step": 0},
    *(
        {"step": 5 * k, "loss": 1.0, **{name: k / (i + 4) for i, name in enumerate(FIGURES)}}
        for k in (1, 2, 3)
    ),
    {"eval_loss": 0.3, "step": 15},
    {"train_runtime": 1.0, "train_loss": 0.5, "step": 15},
]


def test_lines_are_the_log():
    display = AnisotropyProfile.from_log_history(LOG)
    np.testing.assert_array_equal(display.steps, [5, 10, 15])
    assert set(display.figures) == set(FIGURES)
    for i, name in enumerate(FIGURES):
        np.testing.assert_allclose(display.figures[name], np.array([1, 2, 3]) / (i + 4))
        if name != "ev1":
            np.testing.assert_array_equal(display.lines_[name].get_xdata(), [5, 10, 15])
            np.testing.assert_array_equal(display.lines_[name].get_ydata(), display.figures[name])
    isotropy, losses = display.axes_
    assert isotropy.figure is losses.figure is display.figure_
    assert isotropy.get_ylim() == (0, pytest.approx(1.2 * 3 / 4))
    assert [len(axes.lines) for axes in display.axes_] == [3, 2]
    assert display.lines_["ev1"] is display.lines_["anisotropy1_centered"]
    assert "EV1" in display.lines_["ev1"].get_label()
    display.figure_.canvas.draw()


def test_trainer_and_checkpoint_give_the_same(tmp_path):
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": LOG}))
    trainer = SimpleNamespace(state=SimpleNamespace(log_history=LOG))
    one = AnisotropyProfile.from_trainer(trainer)
    other = AnisotropyProfile.from_checkpoint(tmp_path)
    for name in FIGURES:
        np.testing.assert_array_equal(one.figures[name], other.figures[name])
    with pytest.raises(FileNotFoundError, match=r"holds no trainer_state.json; pass a checkpoint-"):
        AnisotropyProfile.from_checkpoint(tmp_path / "nowhere")


def test_what_is_missing_is_left_out_or_a_gap():
    log = [
        {"step": 1, "task_loss": 1.0, "penalty_1": 2.0, "penalty_2": 3.0, "isoscore_star": 0.5},
        {"step": 2, "task_loss": 0.9, "penalty_1": 2.0, "penalty_2": 3.0},
    ]
    display = AnisotropyProfile.from_log_history(log)
    assert list(display.lines_) == ["isoscore_star", "task_loss", "penalty_1", "penalty_2"]
    np.testing.assert_array_equal(display.lines_["isoscore_star"].get_ydata(), [0.5, np.nan])


@pytest.mark.parametrize("log", [[], [{"step": 5, "loss": 1.0, "grad_norm": 2.0}]])
def test_log_without_figures(log):
    message = f"log_history has {len(log)} entries, none with isotropy figures.*logging_steps"
    with pytest.raises(ValueError, match=message):
        AnisotropyProfile.from_log_history(log)


def test_one_value_for_each_step():
    with pytest.raises(ValueError, match=r"figures\['ev1'\] has shape \(2,\), but steps"):
        AnisotropyProfile([1, 2, 3], {"ev1": [0.1, 0.2]})


def test_one_panel_has_the_isotropy_alone():
    display = AnisotropyProfile.from_log_history(LOG, ax=matplotlib.figure.Figure().subplots())
    assert len(display.axes_) == 1
    assert list(display.lines_) == ["isoscore_star", "anisotropy1", "anisotropy1_centered", "ev1"]


def test_a_real_run(tmp_path):
    pytest.importorskip("accelerate")
    from isoadapt.finetune import IsotropyTrainer
    from isoadapt.losses import CosRegLoss
    from tests.finetune.runs import quiet_arguments
    from tests.tiny_models import TEXTS, make_model, make_tokenizer

    inputs = make_tokenizer()(TEXTS, padding=True)
    rows = [{name: inputs[name][i] for name in inputs} | {"labels": i % 3} for i in range(8)]
    settings = {"per_device_train_batch_size": 4, "max_steps": 4}
    args = quiet_arguments(tmp_path, **settings, save_strategy="steps", save_steps=4)
    trainer = IsotropyTrainer(make_model(), args, train_dataset=rows, penalty=CosRegLoss())
    trainer.train()
    display = AnisotropyProfile.from_trainer(trainer)
    assert set(display.lines_) == set(FIGURES)
    np.testing.assert_array_equal(display.steps, [1, 2, 3, 4])
    np.testing.assert_allclose(display.figures["ev1"], display.figures["anisotropy1_centered"])
    saved = AnisotropyProfile.from_checkpoint(tmp_path / "checkpoint-4")
    np.testing.assert_array_equal(saved.figures["penalty"], display.figures["penalty"])
