"""Uses of a user's own in a comparison, and several uses of one kind."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import paired_cosine_distances

from isoadapt.model_selection import Outliers, Similarity, Use, compare_adapters
from tests.model_selection import test_compare_teacher as of_teacher
from tests.model_selection.test_compare import CLOSED, CV, HEAD, TEST, D, X, make_pairs, row_of, y

pytestmark = pytest.mark.usefixtures("fixed_penalties")


@dataclass
class Triplets(Use):
    X: np.ndarray
    near: np.ndarray
    far: np.ndarray
    topics: np.ndarray
    vectors, name, metric = ("X", "near", "far"), "triplets", "accuracy"

    def measure(self, transform):
        anchors, near, far = (transform(rows) for rows in (self.X, self.near, self.far))
        return paired_cosine_distances(anchors, near) < paired_cosine_distances(anchors, far)

    def units(self):
        return self.topics


@dataclass
class Closeness(Triplets):
    """Unlike that of an accuracy, its score exceeds 1."""

    name, metric, highest = "closeness", "closeness", math.inf

    def check(self):
        return replace(self, far=10 * np.sign(self.far))

    def measure(self, transform):
        return np.abs(self.far).sum(axis=1) - paired_cosine_distances(transform(self.X), self.near)

    def evidence(self, values):
        return values.mean() + 1, (values - values.mean()) / len(values)

    def units(self):
        return csr_array(np.eye(len(self.X)))


A, B, _ = make_pairs(200)
TRIPLETS = Triplets(A, B, B[::-1], np.arange(200))


@pytest.mark.parametrize("options", [TEST, CV])
def test_a_use_of_ones_own_is_tested_adjusted_and_worded(options):
    uses = [TRIPLETS, Closeness(A, B, B, None)]
    found = compare_adapters(X, y, CLOSED, head=HEAD, uses=uses, **options)
    assert found.uses[:3] == ["classify", "triplets", "closeness"]
    scores = {}
    for name in CLOSED:
        values = TRIPLETS.measure(found.estimators[name].transform)
        scores[name] = row_of(found, "triplets", name)["score"]
        assert scores[name] == pytest.approx(values.mean())
    base, *adapters = [row for row in found.rows if row["use"] == "triplets" and not row["control"]]
    adapters = [row for row in adapters if row["kind"] == "adapter"]
    first, second = sorted(row["p_value"] for row in adapters)
    assert min(row["p_holm"] for row in adapters) == pytest.approx(2 * first)
    assert max(row["p_holm"] for row in adapters) == pytest.approx(max(2 * first, second))
    best = max(scores, key=scores.get)
    said = (
        f"For triplets, {best} raises the accuracy from {base['score']:.3f} to {scores[best]:.3f}"
    )
    assert found.verdict("triplets").startswith(said)
    assert found.best_adapter("triplets") is found.estimators[best]
    assert (base["n_units"], base["metric"]) == (200, "accuracy")
    row = row_of(found, "closeness")
    assert 10 * D < row["score"] < row["ci_high"] < 10 * D + 1


def test_items_of_a_unit_count_once():
    halves = replace(TRIPLETS, topics=np.arange(200) // 2)
    found = compare_adapters(X, y, "Whitening", uses=[halves], **TEST)
    assert row_of(found, "triplets")["n_units"] == 100
    with pytest.raises(ValueError, match=r"'triplets' has .* \(200,\), but units of 9 items"):
        compare_adapters(X, y, "IsoBN", uses=[replace(TRIPLETS, topics=np.arange(9))], **TEST)
    with pytest.raises(ValueError, match="'neighbours' is taken"):
        compare_adapters(X, y, "IsoBN", uses=[Outliers(X, name="neighbours")], **TEST)


def test_several_of_a_kind_have_their_own_names_and_vectors_of_a_teacher():
    """The second of the same kind is that of the first, in reverse."""
    wide, taught = of_teacher.WIDE, of_teacher.TAUGHT
    uses = [
        Similarity(wide["A"], wide["B"], of_teacher.SCORES),
        Similarity(wide["B"], wide["A"], of_teacher.SCORES, name="titles"),
        Outliers(wide["foreign"]),
        Outliers(wide["foreign"] + 1, name="far"),
    ]
    others = {"titles.A": taught["B"], "titles.B": taught["A"]}
    others |= {"far.foreign": taught["foreign"] + 9}
    options = of_teacher.LABELS | of_teacher.OTHERS | {"uses": uses}
    options |= {"X": wide["X"], "X_test": wide["X_test"], "adapters": "TeacherReadout"}
    found = compare_adapters(**options, teacher=taught | others)
    assert found.uses == ["classify", "similarity", "titles", "neighbours", "outliers", "far"]
    rows = {use: of_teacher.rows_by(found, use) for use in found.uses}
    for name, row in rows["similarity"].items():
        assert rows["titles"][name]["score"] == pytest.approx(row["score"])
    assert rows["far"]["second pass"]["score"] != rows["outliers"]["second pass"]["score"]
    with pytest.raises(ValueError, match=r"no vectors of titles\.A"):
        compare_adapters(**options, teacher=taught)


def test_outliers_of_an_adapter_with_one_column_are_compared():
    found = compare_adapters(X, y, {"pca1": PCA(1)}, uses=[Outliers(X[:30] - 4)], **TEST)
    assert 0 <= row_of(found, "outliers", "pca1")["score"] <= 1
