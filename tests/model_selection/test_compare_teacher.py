"""Comparisons with a teacher: its row, the columns that methods get, and the use of its index."""

import numpy as np
import pytest

from isoadapt import LinearHead, TeacherReadout
from isoadapt.metrics import retrieval_report
from isoadapt.model_selection import Outliers, Search, Similarity, compare_adapters
from isoadapt.model_selection._compare._methods import make_methods
from tests.refusals import refusals

pytestmark = pytest.mark.usefixtures("fixed_penalties")
D, N_LAYERS, N_TEACHER = 5, 9, 7
HEAD = LinearHead(np.eye(2, D), [0.0, 0.2], classes=[0, 1])
SETS = {"X": 120, "X_test": 60, "A": 80, "B": 80, "queries": 30, "documents": 30, "foreign": 20}


def make_sets():
    """Sets of rows of the classifier and of the teacher, which see the same meaning."""
    rng = np.random.default_rng(0)
    maps = [rng.normal(size=(4, d)) for d in (D, N_LAYERS, N_TEACHER)]
    wide, taught, asked = {}, {}, None
    for name, n in SETS.items():
        meaning = rng.normal(size=(n, 4)) + (3.0 if name == "foreign" else 0.0)
        if name == "documents":
            meaning = asked + 0.1 * rng.normal(size=(n, 4))
        asked = meaning
        own = [meaning @ maps[0] * [20, 1, 1, 1, 1], np.tanh(meaning @ maps[1] / 3)]
        wide[name] = np.hstack(own) + 0.01 * rng.normal(size=(n, D + N_LAYERS))
        taught[name] = np.tanh(meaning @ maps[2] / 2)
    return wide, taught


WIDE, TAUGHT = make_sets()
SCORES = np.einsum("nd,nd->n", TAUGHT["A"], TAUGHT["B"])
LABELS = {"y": HEAD.predict(WIDE["X"][:, :D]), "y_test": HEAD.predict(WIDE["X_test"][:, :D])}
OTHERS = {"head": HEAD, "encoder_saw": True, "random_state": 0}


IN_HEAD = "TeacherReadout(space='head')"
ADAPTERS = ["Whitening", "TeacherReadout", TeacherReadout(space="head")]


def compare(sets, adapters, **options):
    uses = [
        Similarity(sets["A"], sets["B"], SCORES),
        Search(sets["queries"], sets["documents"], range(30)),
        Outliers(sets["foreign"]),
    ]
    rows = {name: sets[name] for name in ("X", "X_test")} | LABELS | OTHERS
    return compare_adapters(adapters=adapters, uses=uses, **rows | options)


def rows_by(comparison, use):
    return {row["adapter"]: row for row in comparison.rows if row["use"] == use}


@pytest.fixture(scope="module")
def found(fixed_penalties):
    return compare(WIDE, ADAPTERS, teacher=TAUGHT)


def test_rows_of_other_adapters_do_not_change(found):
    expected = compare({name: rows[:, :D] for name, rows in WIDE.items()}, "Whitening")
    assert found.uses == [*expected.uses[:3], "index", *expected.uses[3:]]
    for use in expected.uses:
        before, after = rows_by(expected, use), rows_by(found, use)
        assert set(after) - set(before) == {"second pass", "TeacherReadout", IN_HEAD}
        for name, row in before.items():
            kept = {k: v for k, v in row.items() if not k.endswith(("_seconds", "_holm"))}
            found_again = {k: after[name][k] for k in kept}
            assert found_again == pytest.approx(kept, abs=1e-9, nan_ok=True)


def test_the_readout_is_that_of_all_columns(found):
    readout = TeacherReadout(HEAD).fit(WIDE["X"], TAUGHT["X"]).transform(WIDE["X_test"])
    ours = found.estimators["TeacherReadout"].transform(WIDE["X_test"])
    np.testing.assert_allclose(ours, readout, atol=1e-9)
    for name in ("TeacherReadout", IN_HEAD):
        row = rows_by(found, "classify")[name]
        assert (row["changed_predictions"], row["score"]) == (0, 1)
    similar = rows_by(found, "similarity")
    assert similar["second pass"]["score"] > similar["TeacherReadout"]["score"] > 0.9
    assert similar["no adapter"]["score"] < 0.6


def test_queries_by_the_classifier_search_the_documents_of_the_teacher(found):
    """A readout of the head's space has no index."""
    rows = rows_by(found, "index")
    assert list(rows) == ["second pass", "TeacherReadout"]
    queries = TeacherReadout(HEAD).fit(WIDE["X"], TAUGHT["X"]).transform(WIDE["queries"])
    for name, asked in (("second pass", TAUGHT["queries"]), ("TeacherReadout", queries)):
        expected = retrieval_report(asked, TAUGHT["documents"], range(30), k=10).mrr
        assert rows[name]["score"] == pytest.approx(expected)
    difference = rows["TeacherReadout"]["score"] - rows["second pass"]["score"]
    assert rows["TeacherReadout"]["difference"] == pytest.approx(difference)
    assert np.isnan(rows["second pass"]["difference"])
    assert "by TeacherReadout" in found.verdict("index")
    assert "by the teacher itself" in found.verdict("index")


def test_fast_includes_the_readout_and_cross_validates_it():
    methods = make_methods("fast", HEAD, "classify", teacher=True)
    assert "TeacherReadout" in [method.name for method in methods]
    cv = [(np.arange(60), np.arange(60, 120)), (np.arange(60, 120), np.arange(60))]
    options = {"head": HEAD, "teacher": TAUGHT, "encoder_saw": False, "cv": cv, "random_state": 0}
    crossed = compare_adapters(WIDE["X"], LABELS["y"], "TeacherReadout", **options)
    assert rows_by(crossed, "classify")["TeacherReadout"]["changed_predictions"] == 0


def test_a_cache_keeps_the_second_pass_and_the_refitted_head_apart(found, tmp_path):
    """They are equal estimators."""
    again = rows_by(compare(WIDE, ADAPTERS, teacher=TAUGHT, cache=tmp_path), "classify")
    scores = {name: pytest.approx(row["score"], abs=1e-12) for name, row in again.items()}
    assert {name: row["score"] for name, row in rows_by(found, "classify").items()} == scores


OF_ALL_COLUMNS = LinearHead(np.eye(2, D + N_LAYERS), [0.0, 0.2], classes=[0, 1])
test_what_does_not_fit_together_is_refused = refusals(
    ({"head": "logistic"}, "head"),
    ({"teacher": None, "head": OF_ALL_COLUMNS}, "pass teacher="),
    ({"teacher": {"X": TAUGHT["X"]}}, "teacher has no vectors of X_test"),
    ({"X": WIDE["X"][:, : D - 1]}, "X has 4 columns"),
    ({"teacher": TAUGHT | {"X": TAUGHT["X_test"]}}, r"teacher\['X'\]"),
    call=lambda changes: compare(WIDE, "TeacherReadout", **{"teacher": TAUGHT} | changes),
)
