"""The one rule by which labels are matched with the classes of a checkpoint."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

_NUMBER = re.compile(r"(?<!\w)-?\d+")  # as in "4 stars", but not in "LABEL_4"
_CASES = (str.lower, str.upper, str.title, str.capitalize)


def class_labels(config: Any, n_classes: int, y: Iterable[Any] | None = None) -> list[Any]:
    """Return the label of each class in the order of the ids, spelled as in `y`.

    Without `y`, they are the names in ``id2label``, or the ids if these are "LABEL_0" and so on, or
    not one for each class. The labels `y` may be names, ids, "LABEL_<id>", ids as strings, the only
    numbers in the names, names in another case, or booleans for the names true and false. If no
    spelling has all of them, the one with the most of them is returned. If two have, and differ in
    the classes, ValueError is raised.
    """
    ids, plain = list(range(n_classes)), [f"LABEL_{i}" for i in range(n_classes)]
    given = config.id2label or {}
    names: list[Any] = [str(given[i]) for i in ids] if {*given} == {*ids} else ids
    names = ids if names == plain or len({*names}) < n_classes else names
    if y is None:
        return names
    found = [_NUMBER.findall(str(name)) for name in names]
    numbers = [int(each[0]) for each in found if len(each) == 1]
    ways = [names, plain, ids, [*map(str, ids)], numbers, [*map(str, numbers)]]
    ways += [[case(str(name)) for name in names] for case in _CASES]
    ways = [way for way in ways if len({*way}) == n_classes]
    labels, lower = {*y}, [str(name).lower() for name in names]
    if {*lower} == {"true", "false"} and all(isinstance(each, bool | np.bool_) for each in labels):
        return [name == "true" for name in lower]
    complete = [way for way in ways if labels <= {*way}]
    if not complete:
        return min(ways, key=lambda way: len(labels - {*way}))
    exact = complete[0] is names and isinstance(names[0], str)
    if not exact and len({tuple(map(way.index, labels)) for way in complete}) > 1:
        raise ValueError(
            f"y holds {sorted(labels)}, which may be ids, 0 to {n_classes - 1}, or the numbers in "
            f"the names {names} of the checkpoint's classes: pass these names, or the ids as "
            "'LABEL_0' and so on"
        )
    return complete[0]
