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
    others = [
        {"y": (Y + 1) % 3},
        {"scoring": "neg_log_loss"},
        {"grid": {"lam": [4]}},
        {"estimator": IStarAdapter(HEAD, max_epochs=1, random_state=0, zeta=0.9)},
    ]
    for options in others:
        epochs.count = 0
        search(tmp_path, **one | options)
        assert epochs.count > needed // 3, options
    epochs.count = 0
    search(tmp_path, **one)
    assert epochs.count == 0


CODE = """
    from collections import namedtuple
    from functools import lru_cache
    from types import MappingProxyType
    import torch

    SCALE = MappingProxyType({"of": 2.0})  # which cannot be pickled
    Pair = namedtuple("Pair", "left right")

    @lru_cache
    def power():
        return 2

    def size(points):
        from its_helper import FACTOR
        scale = Pair(SCALE["of"] * FACTOR + size.more, 0).left
        return scale * points.abs().pow(power()).mean()

    size.more = 1.0

    class Penalty(torch.nn.Module):
        offset = 1.0

        @property
        def shift(self):
            return self.offset + 1

        def forward(self, points):
            return size(points) + self.shift

    def score(estimator, X, y):
        return max(map(lambda points: float(size(torch.tensor(points))), [estimator.transform(X)]))
"""


def modules(old="", new=""):
    """Make the user's modules, in which a piece of code is replaced."""
    sources = {"of_the_user": textwrap.dedent(CODE), "its_helper": "FACTOR = 5.0"}
    found = {name: ModuleType(name) for name in sources}
    for name, source in sources.items():
        exec(source.replace(old, new, 1), vars(found[name]))
    return found


@pytest.mark.parametrize(
    ("change", "of_scorer", "of_penalty"),
    [
        (("2.0})", "3.0})"), True, True),
        (("FACTOR = 5.0", "FACTOR = 6.0"), True, True),
        (("size.more = 1.0", "size.more = 2.0"), True, True),
        (("pow(power())", "pow(1)"), True, True),
        (("return 2", "return 3"), True, True),
        (("max(map(", "min(map("), True, False),
        (("self.offset + 1", "self.offset - 1"), False, True),
        (("offset = 1.0", "offset = 2.0"), False, True),
        (("import torch\n", "import torch\n\nOTHER = 1\n"), False, False),
    ],
)
def test_changed_code_is_run(tmp_path, epochs, monkeypatch, change, of_scorer, of_penalty):
    """A body, a constant or a global that is read belongs to the key, and nothing else."""

    def runs(found, part):
        for name, each in found.items():
            monkeypatch.setitem(sys.modules, name, each)
        found = found["of_the_user"]
        penalty = found.Penalty() if part == "penalty" else IsoScoreLoss()
        adapter = PenaltyAdapter(penalty, HEAD, max_epochs=1, random_state=0)
        scoring = found.score if part == "scorer" else None
        epochs.count = 0
        search(tmp_path, adapter, {"lam": [1.0]}, scoring=scoring)
        return epochs.count > 0

    first, other = modules(), modules(*change)
    for part, changes in {"scorer": of_scorer, "penalty": of_penalty}.items():
        assert runs(first, part)
        assert not runs(modules(), part)
        assert runs(other, part) == changes


def test_damaged_files_are_replaced(tmp_path, epochs):
    whole = search(tmp_path, grid={"lam": [1]})
    needed, epochs.count = epochs.count, 0
    for file in tmp_path.iterdir():
        file.write_bytes(b"damaged")
    assert_same_scores(search(tmp_path, grid={"lam": [1]}), whole)
    assert epochs.count == needed
