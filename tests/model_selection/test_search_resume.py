"""AdapterSearchCV(cache=...): a search that was interrupted goes on after its finished blocks."""

import sys
import textwrap
from types import ModuleType

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

from isoadapt import IStarAdapter, LinearHead, PenaltyAdapter, Whitening
from isoadapt.adapters._engine._loop import AdapterNet
from isoadapt.losses import IsoScoreLoss
from isoadapt.model_selection import AdapterSearchCV
from tests.model_selection.searches import count_members

X, Y = make_classification(90, 8, n_informative=6, n_classes=3, random_state=0)
HEAD = LinearHead.from_estimator(LogisticRegression().fit(X, Y))
ADAPTER = IStarAdapter(HEAD, max_epochs=3, random_state=0)
GRID = {"lam": [-1, 0.5, 2, 4]}
pytestmark = [
    pytest.mark.usefixtures("fixed_penalties"),
    pytest.mark.filterwarnings("ignore:One or more of the test scores are non-finite:UserWarning"),
]


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


def search(cache=None, estimator=ADAPTER, grid=GRID, y=Y, **options):
    options = {"cv": 2, "refit": False, **options}
    return AdapterSearchCV(estimator, grid, cache=cache, **options).fit(X, y)


def assert_same_scores(ours, theirs):
    assert set(ours.cv_results_) == set(theirs.cv_results_)
    for name, column in theirs.cv_results_.items():
        if not name.endswith("_time"):
            np.testing.assert_array_equal(ours.cv_results_[name], column, strict=name != "params")


def test_a_link_whose_target_is_gone_is_a_new_cache(tmp_path, epochs):
    (tmp_path / "link").symlink_to("gone")
    assert_same_scores(search(tmp_path / "link"), search())
    assert len(list((tmp_path / "gone").iterdir())) == 8


def test_finished_blocks_are_read(tmp_path, epochs, monkeypatch):
    count_members(monkeypatch, 2)
    whole = search()
    needed, epochs.count, epochs.stop = epochs.count, 0, epochs.count - 1
    with pytest.warns(UserWarning, match=r"2 of 4 candidates .* resumes from cache="):
        search(tmp_path)
    epochs.count, epochs.stop = 0, None
    assert_same_scores(search(tmp_path), whole)
    assert 0 < epochs.count <= needed / 2
    epochs.count = 0
    assert_same_scores(search(tmp_path, verbose=1), whole)
    assert epochs.count == 0
    assert {file.suffix for file in tmp_path.iterdir()} == {".joblib"}


@pytest.mark.filterwarnings("ignore:[24] of 4 fits could not be trained together")
def test_fits_done_one_at_a_time_are_kept(tmp_path, monkeypatch):
    fit, count, given = Whitening.fit, [], (Whitening(head="logistic"), {"strength": [0.5, 1.0]})

    def stopping(self, *arguments):
        count.append(1)
        if len(count) == 4:
            raise KeyboardInterrupt
        return fit(self, *arguments)

    monkeypatch.setattr(Whitening, "fit", stopping)
    with pytest.warns(UserWarning, match="interrupted: 1 of 2"):
        search(tmp_path, *given)
    resumed = search(tmp_path, *given)
    assert len(count) == 4 + 1
    assert_same_scores(resumed, search(None, *given))
    assert list(resumed.unbatched_.values()) == [4]


def test_other_searches_are_not_mixed_up(tmp_path, epochs):
    one = {"grid": {"lam": [3]}, "estimator": IStarAdapter(HEAD, max_epochs=1, random_state=0)}
    search(tmp_path, **one)
    needed = epochs.count
    others = [{"y": (Y + 1) % 3}, {"scoring": "neg_log_loss"}, {"grid": {"lam": [4]}}]
    zeta = {"estimator": IStarAdapter(HEAD, max_epochs=1, random_state=0, zeta=0.9)}
    for options in (*others, zeta):
        epochs.count = 0
        search(tmp_path, **one | options)
        assert epochs.count > needed // 3, options
    epochs.count = 0
    search(tmp_path, **one)
    assert epochs.count == 0


CODE = """
    import threading
    import torch

    LOCK = threading.Lock()  # which cannot be pickled

    class Penalty(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("offset", torch.ones(1))

        def forward(self, points):
            return (points + self.offset).abs().mean()

    def score(estimator, X, y):
        with LOCK:
            return float(abs(estimator.transform(X)).max())
"""


@pytest.fixture
def runs(tmp_path, epochs, monkeypatch):
    def runs(code, module, part):
        """Whether Python, if it imports or runs a file with this code, fits again."""
        file, found = tmp_path / "code.py", ModuleType(module)
        file.write_text(textwrap.dedent(code))
        monkeypatch.setitem(sys.modules, module, found)
        found.__file__ = str(file)
        exec(compile(file.read_text(), file, "exec"), vars(found))
        penalty = found.Penalty() if part == "penalty" else IsoScoreLoss()
        adapter = PenaltyAdapter(penalty, HEAD, max_epochs=1, random_state=0)
        scoring = found.score if part == "scorer" else None
        epochs.count = 0
        search(tmp_path / "cache", adapter, {"lam": [1.0]}, scoring=scoring)
        return epochs.count > 0

    return runs


@pytest.mark.parametrize("part", ["penalty", "scorer"])
@pytest.mark.parametrize("module", ["of_the_user", "__main__"])
def test_edited_code_is_run(runs, module, part):
    """Every change of a module counts, and in what is run itself those of the part."""
    edit = {"penalty": (".abs()", ".square()"), "scorer": ("float(abs", "float(-abs")}[part]
    assert runs(CODE, module, part)
    assert not runs(CODE, module, part)
    assert runs(CODE.replace(*edit), module, part)
    assert runs(CODE + "\n    OTHER = 1", module, part) == (module != "__main__")
    assert not runs(CODE, module, part)


def test_an_edited_base_class_is_seen(runs, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    code = "from its_base import Base\nclass Penalty(Base):\n    pass"
    for old, new, again in [("", "", True), ("", "", False), ("abs", "square", True)]:
        base = textwrap.dedent(CODE).replace(old, new).replace("Penalty", "Base")
        (tmp_path / "its_base.py").write_text(base)
        monkeypatch.delitem(sys.modules, "its_base", raising=False)
        assert runs(code, "of_the_user", "penalty") == again


class Constant:
    """A scorer whose class has no source, as in a notebook."""

    def __call__(self, estimator, X, y):
        return 0.5


def test_results_of_code_without_a_source_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(Constant, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Constant", Constant, raising=False)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.warns(UserWarning, match="source of a class or function is not found"):
        search(tmp_path, scoring=Constant())
    assert not list(tmp_path.iterdir())


def test_damaged_files_are_replaced(tmp_path, epochs):
    whole = search(tmp_path, grid={"lam": [1]})
    needed, epochs.count = epochs.count, 0
    for file in tmp_path.iterdir():
        file.write_bytes(b"damaged")
    assert_same_scores(search(tmp_path, grid={"lam": [1]}), whole)
    assert epochs.count == needed
