"""One rule matches labels with the classes of a checkpoint."""

from types import SimpleNamespace

import pytest

from isoadapt.encoders._class_labels import class_labels

STARS = ["1 star", "2 stars", "3 stars"]
CASES = [
    ([], None, [0, 1, 2]),
    (["LABEL_0", "LABEL_1", "LABEL_2"], None, [0, 1, 2]),
    (["b", "a", "c"], None, ["b", "a", "c"]),
    (["b", "a", "b"], None, [0, 1, 2]),  # not one for each class
    (["b", "a"], None, [0, 1, 2]),
    (["b", "a", "c"], ["2", "0"], ["0", "1", "2"]),
    (["b", "a", "c"], [2.0, 0.0], [0, 1, 2]),
    (["b", "a", "c"], [True, False], [0, 1, 2]),
    (["LABEL_0", "LABEL_1", "LABEL_2"], ["LABEL_1"], ["LABEL_0", "LABEL_1", "LABEL_2"]),
    (["LABEL_1", "LABEL_0", "x"], ["LABEL_0"], ["LABEL_1", "LABEL_0", "x"]),
    (STARS, [3, 1], [1, 2, 3]),
    (STARS, [3.0, 1.0], [1, 2, 3]),
    (STARS, [0, 2], [0, 1, 2]),
    (STARS, ["1", "3"], ["1", "2", "3"]),
    (["3", "1", "2"], ["1", "2"], ["3", "1", "2"]),  # exactly as written
    ([3, 1, 2], [3, 1, 2], [3, 1, 2]),
    (["-1", "0", "1"], [-1, 1], [-1, 0, 1]),
    *((["b", "a", "c"], y, ["b", "a", "c"]) for y in (["a", "d"], ["A"], ["LABEL_0"], [0, 3])),
    (["1.5 stars", "2.5 stars", "3.5 stars"], [1, 2], [0, 1, 2]),
    (["0 stars", "1 star", "3 stars"], [0, 1], [0, 1, 2]),
]


@pytest.mark.parametrize(("names", "y", "expected"), CASES)
def test_labels_are_spelled_as_those_given(names, y, expected):
    config = SimpleNamespace(id2label=dict(enumerate(names)))
    assert class_labels(config, 3, y) == expected


@pytest.mark.parametrize(
    ("names", "y"),
    [
        (STARS, [1, 2]),
        (STARS, ["1", "2"]),
        (["2", "1", "0"], [0, 1, 2]),
        (["True", "False"], [True, False]),
    ],
)
def test_ids_that_are_also_numbers_of_other_names_are_refused(names, y):
    with pytest.raises(ValueError, match=r"may be ids, 0 to \d, or the numbers .*class_names="):
        class_labels(SimpleNamespace(id2label=dict(enumerate(names))), len(names), y)


def test_booleans_are_the_names_true_and_false():
    config = SimpleNamespace(id2label={0: "False", 1: "True"})
    assert class_labels(config, 2, [True, False]) == [0, 1]
    assert class_labels(config, 2, ["True"]) == ["False", "True"]
