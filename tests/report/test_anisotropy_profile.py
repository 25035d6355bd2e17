"""AnisotropyProfile: the curves are the log."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")

from isoadapt.report import AnisotropyProfile  # noqa: E402
from tests.tiny_models import make_model  # noqa: E402

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


def test_lines_are_the_log(tmp_path):
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": LOG}))
    trainer = SimpleNamespace(state=SimpleNamespace(log_history=LOG))
    for display in (
        AnisotropyProfile.from_trainer(trainer),
        AnisotropyProfile.from_checkpoint(tmp_path),
    ):
        np.testing.assert_array_equal(display.steps, [5, 10, 15])
        assert set(display.figures) == set(display.lines_) == set(FIGURES)
        for i, name in enumerate(FIGURES):
            np.testing.assert_allclose(display.figures[name], np.array([1, 2, 3]) / (i + 4))
            if name != "ev1":
                shown = display.lines_[name].get_xydata().T
                np.testing.assert_array_equal(shown, [[5, 10, 15], display.figures[name]])
        assert display.axes_[0].get_ylim() == (0, pytest.approx(1.2 * 3 / 4))
        assert [len(axes.lines) for axes in display.axes_] == [3, 2]
        assert display.lines_["ev1"] is display.lines_["anisotropy1_centered"]


def test_what_is_missing_is_left_out_or_a_gap():
    log = [
        {"step": 1, "task_loss": 1.0, "penalty_1": 2.0, "penalty_2": 3.0, "isoscore_star": 0.5},
        {"step": 2, "task_loss": 0.9, "penalty_1": 2.0, "penalty_2": 3.0},
    ]
    display = AnisotropyProfile.from_log_history(log)
    assert list(display.lines_) == ["isoscore_star", "task_loss", "penalty_1", "penalty_2"]
    np.testing.assert_array_equal(display.lines_["isoscore_star"].get_ydata(), [0.5, np.nan])


def test_one_panel_has_the_isotropy_alone():
    display = AnisotropyProfile.from_log_history(LOG, ax=matplotlib.figure.Figure().subplots())
    assert len(display.axes_) == 1
    assert list(display.lines_) == ["isoscore_star", "anisotropy1", "anisotropy1_centered", "ev1"]


@pytest.mark.slow
def test_a_real_run(tmp_path):
    pytest.importorskip("accelerate")
    from isoadapt.finetune import IsotropyTrainer
    from isoadapt.losses import CosRegLoss
    from tests.finetune.runs import make_rows, quiet_arguments

    args = quiet_arguments(tmp_path, max_steps=2)
    model = make_model(num_hidden_layers=1)
    trainer = IsotropyTrainer(model, args, train_dataset=make_rows(16), penalty=CosRegLoss())
    trainer.train()
    display = AnisotropyProfile.from_trainer(trainer)
    assert set(display.lines_) == set(FIGURES)
    np.testing.assert_array_equal(display.steps, [1, 2])
