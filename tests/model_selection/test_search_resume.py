"""AdapterSearchCV(cache=...): a search that was interrupted anywhere goes on from there."""

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.model_selection import KFold

from isoadapt import CosRegAdapter, IStarAdapter, Whitening
from isoadapt.adapters import _together
from isoadapt.adapters._training._loop import AdapterNet
from isoadapt.adapters._training._problem import Penalty
from isoadapt.model_selection import AdapterSearchCV
from isoadapt.model_selection._search import _evaluation

X, Y = make_classification(120, 8, n_informative=6, n_classes=3, random_state=0)
ADAPTER = IStarAdapter(max_epochs=5, random_state=0)
pytestmark = pytest.mark.usefixtures("fixed_penalties")
GRID = {"lam": [-1, 0.5, 2], "lr": [1e-3, 1e-2]}


class ClosureAdapter(CosRegAdapter):
    """An adapter whose penalty cannot be pickled."""

    def _make_penalty(self, problem, device):
        return Penalty(lambda points: points.square().mean((-2, -1)))


@pytest.fixture(autouse=True)
def save_every_epoch(monkeypatch):
    monkeypatch.setattr(_together, "SECONDS", 0.0)
    monkeypatch.setattr(_together, "_LEAST_RATIO", 0)


@pytest.fixture
def epochs(monkeypatch):
    """Count the epochs that are trained; the epoch `stop` is interrupted."""

    class Epochs:
        count, stop = 0, None

    def counted(net, *arguments, **options):
        Epochs.count += 1
        if Epochs.count == Epochs.stop:
            raise KeyboardInterrupt
        return fit_loop(net, *arguments, **options)

    fit_loop = AdapterNet.fit_loop
    monkeypatch.setattr(AdapterNet, "fit_loop", counted)
    return Epochs


def search(cache=None, estimator=ADAPTER, grid=GRID, **options):
    options = {"cv": 3, "refit": False, **options}
    return AdapterSearchCV(estimator, grid, cache=cache, **options)


def assert_same_scores(ours, theirs):
    assert set(ours.cv_results_) == set(theirs.cv_results_)
    for name, column in theirs.cv_results_.items():
        if not name.endswith("_time"):
            np.testing.assert_array_equal(ours.cv_results_[name], column, strict=name != "params")


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite:UserWarning")
def test_candidates_that_had_stopped_are_kept(epochs):
    """One block without a cache: an interrupt keeps what early stopping had completed."""
    estimator = IStarAdapter(max_epochs=30, patience=2, random_state=0)
    grid = {"lam": [0.5], "lr": [1e-4, 1e-2, 0.3]}
    whole = search(estimator=estimator, grid=grid).fit(X, Y)
    epochs.stop = 2 * epochs.count - 1  # one epoch before the end
    with pytest.warns(UserWarning, match=r"interrupted: [12] of 3 candidates are done"):
        part = search(estimator=estimator, grid=grid).fit(X, Y)
    assert epochs.count == epochs.stop
    scores = part.cv_results_["mean_test_score"]
    done = np.isfinite(scores)
    assert 0 < done.sum() < 3
    np.testing.assert_array_equal(scores[done], whole.cv_results_["mean_test_score"][done])


def interrupt(cache, epochs, stop, **options):
    epochs.stop = epochs.count + stop
    with pytest.raises(KeyboardInterrupt, match="the same call resumes from cache="):
        search(cache, **options).fit(X, Y)
    epochs.stop = None


@pytest.mark.parametrize(
    ("options", "members"),
    [({}, 6), ({"network": "mlp", "head_training": "alternating"}, 18)],
    ids=str,
)
def test_an_interrupted_training_goes_on_to_the_last_bit(
    tmp_path, epochs, monkeypatch, options, members
):
    monkeypatch.setattr(_evaluation.Group, "limits", lambda self: (members, 9))
    estimator = IStarAdapter(max_epochs=5, random_state=0, **options)
    whole = search(estimator=estimator, return_train_score=True).fit(X, Y)
    needed = epochs.count
    for stop in (4, 2):  # the second time, two epochs later
        epochs.count = 0
        interrupt(tmp_path, epochs, stop, estimator=estimator, return_train_score=True)
    epochs.count = 0
    resumed = search(tmp_path, estimator=estimator, return_train_score=True).fit(X, Y)
    assert epochs.count == needed - 4
    assert_same_scores(resumed, whole)


def test_members_that_stopped_early_stay_stopped(tmp_path, epochs, monkeypatch):
    keep, kept = AdapterNet.keep, []
    monkeypatch.setattr(AdapterNet, "keep", lambda net, left: (kept.append(left), keep(net, left)))
    options = {"patience": 2, "lr": 0.3, "lr_schedule": "constant", "ridge": 0.0, "random_state": 0}
    estimator = IStarAdapter(max_epochs=12, **options)
    grid = {"lam": [-3, 1, 5]}
    whole = search(estimator=estimator, grid=grid).fit(X, Y)
    assert kept
    needed, epochs.count = epochs.count, 0
    interrupt(tmp_path, epochs, needed - 1, estimator=estimator, grid=grid)
    epochs.count = 0
    assert_same_scores(search(tmp_path, estimator=estimator, grid=grid).fit(X, Y), whole)
    assert epochs.count <= 2


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
def test_finished_blocks_are_read(tmp_path, epochs, monkeypatch):
    monkeypatch.setattr(_evaluation.Group, "limits", lambda self: (2, 9))
    whole = search().fit(X, Y)
    needed, epochs.count, epochs.stop = epochs.count, 0, epochs.count - 1
    with pytest.warns(UserWarning, match=r"4 of 6 candidates .* resumes from cache="):
        part = search(tmp_path).fit(X, Y)
    np.testing.assert_array_equal(
        part.cv_results_["mean_test_score"][:4], whole.cv_results_["mean_test_score"][:4]
    )
    epochs.count, epochs.stop = 0, None
    assert_same_scores(search(tmp_path).fit(X, Y), whole)
    assert 0 < epochs.count < needed / 3
    epochs.count = 0
    assert_same_scores(search(tmp_path, verbose=1).fit(X, Y), whole)
    assert epochs.count == 0
    assert {file.suffix for file in tmp_path.iterdir()} == {".joblib"}


def test_memory_that_changed_in_between_does_not_change_the_blocks(tmp_path, epochs, monkeypatch):
    """As on a GPU, whose free memory decides."""
    whole = search().fit(X, Y)
    epochs.count = 0
    interrupt(tmp_path, epochs, 3)
    monkeypatch.setattr(_evaluation.Group, "limits", lambda self: (3, 9))
    assert_same_scores(search(tmp_path).fit(X, Y), whole)


@pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite")
@pytest.mark.filterwarnings("ignore:6 of 6 fits could not be trained together")
def test_fits_done_one_at_a_time_are_kept(tmp_path, monkeypatch):
    grid = {"strength": [0.5, 1.0]}
    estimator = Whitening(head="logistic")
    fit, count = Whitening.fit, []

    def stopping(self, *arguments):
        count.append(1)
        if len(count) == 5:
            raise KeyboardInterrupt
        return fit(self, *arguments)

    monkeypatch.setattr(Whitening, "fit", stopping)
    with pytest.warns(UserWarning, match="interrupted: 1 of 2"):
        search(tmp_path, estimator, grid).fit(X, Y)
    with pytest.warns(UserWarning, match="6 of 6 fits"):
        resumed = search(tmp_path, estimator, grid).fit(X, Y)
    assert len(count) == 5 + 2
    with pytest.warns(UserWarning, match="6 of 6 fits"):
        assert_same_scores(resumed, search(None, estimator, grid).fit(X, Y))
    assert list(resumed.unbatched_.values()) == [6]


def test_other_searches_are_not_mixed_up(tmp_path, epochs):
    one = {"grid": {"lam": [3]}}
    search(tmp_path, **one).fit(X, Y)
    needed = epochs.count
    others = [
        ({}, X + 1, Y),
        ({}, X, (Y + 1) % 3),
        ({"cv": KFold(3)}, X, Y),
        ({"scoring": "neg_log_loss"}, X, Y),
        ({"grid": {"lam": [4]}}, X, Y),
    ]
    for options, rows, labels in others:
        epochs.count = 0
        search(tmp_path, **one | options).fit(rows, labels)
        assert epochs.count > needed // 3
    epochs.count = 0
    search(tmp_path, **one).fit(X, Y)
    assert epochs.count == 0


def test_damaged_files_are_replaced(tmp_path, epochs):
    whole = search().fit(X, Y)
    epochs.count = 0
    interrupt(tmp_path, epochs, 3)
    for _ in range(2):
        for file in tmp_path.iterdir():
            file.write_bytes(b"damaged")
        epochs.stop = None
        assert_same_scores(search(tmp_path).fit(X, Y), whole)


def test_a_training_that_cannot_be_saved_starts_again(tmp_path, epochs):
    options = {"estimator": ClosureAdapter(max_epochs=3, random_state=0), "grid": {"lam": [1, 2]}}
    whole = search(**options).fit(X, Y)
    needed, epochs.count = epochs.count, 0
    interrupt(tmp_path, epochs, 2, **options)
    epochs.count = 0
    assert_same_scores(search(tmp_path, **options).fit(X, Y), whole)
    assert epochs.count == needed


def test_folders_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be written"):
        search(tmp_path / "file").fit(X, Y)
