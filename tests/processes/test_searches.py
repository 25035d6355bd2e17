"""Searches and comparisons in several processes, and trainings that torchrun distributes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.utils import gather_object
from sklearn.datasets import make_classification

from isoadapt import IStarAdapter
from isoadapt.finetune import IsoBNLayer
from isoadapt.losses import CosRegLoss, IsoScoreLoss, PersistentEntropyLoss
from isoadapt.model_selection import AdapterSearchCV, compare_adapters
from isoadapt.model_selection._search import _evaluation
from tests.finetune.runs import trained_weights

pytestmark = pytest.mark.xdist_group("processes")


def test_a_search_in_processes_gives_the_results_of_one_and_keeps_them(tmp_path, monkeypatch):
    rows, labels = make_classification(90, 8, n_informative=6, n_classes=3, random_state=0)
    adapter = IStarAdapter(max_epochs=1, random_state=0)

    def scores(**options):
        options |= {"cv": 2, "refit": False, "scoring": "neg_log_loss"}
        search = AdapterSearchCV(adapter, {"lam": [-1, 2]}, **options).fit(rows, labels)
        return [search.cv_results_[f"split{fold}_test_score"] for fold in range(2)]

    def run(*arguments):
        raise AssertionError("trained again")

    ours = scores(n_jobs=2, cache=tmp_path)
    np.testing.assert_allclose(ours, scores(), atol=1e-5)
    monkeypatch.setattr(_evaluation.Group, "run", run)
    np.testing.assert_array_equal(scores(cache=tmp_path), ours)


def test_a_comparison_does_not_depend_on_the_number_of_processes():
    X, y = make_classification(60, 6, random_state=0)
    cv = [(np.arange(30), np.arange(30, 60)), (np.arange(30, 60), np.arange(30))]
    options = {"cv": cv, "encoder_saw": False, "random_state": 0}
    found = [compare_adapters(X, y, "ClusterIsotropy", n_jobs=n, **options).rows for n in (1, 2)]
    for one, other in zip(*found, strict=True):
        assert one["adapter"] == other["adapter"]
        assert one["score"] == pytest.approx(other["score"])


PENALTIES = {  # of every kind of place, each with what else the trainer is told
    "istar": (IsoScoreLoss(0.3, "linear"), {"where": "all", "lam": -1.0}),
    "balanced": (IsoScoreLoss(), {"where": "last", "balance": "ema"}),
    "entropy": (PersistentEntropyLoss(), {"where": "head_input"}),
    "cosreg": (CosRegLoss(), {"where": [1]}),
    "anchor": ("anchor", {}),
}


def isobn_batches():
    """Rows (n, 6) that each of two processes has in the batches of an IsoBNLayer."""
    rows = torch.randn(102, 6, generator=torch.Generator().manual_seed(0))
    return rows[:100].split([70, 30]), rows[100:].split(1)


def train_in_this_process(folder, out):
    """What torchrun starts in each process; the first one writes the results of all."""
    found = trained_weights(PENALTIES, folder, batch_size=8)
    rank, layer = torch.distributed.get_rank(), IsoBNLayer(6)
    for parts in isobn_batches():
        layer(parts[rank])
    found["isobn"] = gather_object([dict(layer.state_dict())])
    if rank == 0:
        torch.save(found, out)
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def distributed(tmp_path_factory):
    """Weights and logs after training in two processes, four texts each, and states of IsoBN."""
    folder = tmp_path_factory.mktemp("distributed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", "-m", "tests.processes.test_searches"]
    subprocess.run(
        [*command, str(folder), str(folder / "weights.pt")],
        check=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        timeout=300,
    )
    return torch.load(folder / "weights.pt")


@pytest.mark.slow
def test_two_processes_train_as_one(distributed, tmp_path):
    """With each kind of penalty; here the batches are twice as large."""
    single = trained_weights(PENALTIES, tmp_path, batch_size=16)
    for name, expected in single.items():
        torch.testing.assert_close(distributed[name], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_two_processes_see_one_batch_of_isobn(distributed):
    layer = IsoBNLayer(6)
    for parts in isobn_batches():
        layer(torch.cat(parts))
    for state in distributed["isobn"]:
        torch.testing.assert_close(state, dict(layer.state_dict()))


if __name__ == "__main__":
    train_in_this_process(*sys.argv[1:])
