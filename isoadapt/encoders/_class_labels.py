"""The one rule by which labels are matched with the classes of a checkpoint."""

import copy
import re
from collections.abc import Iterable
from typing import Any

from isoadapt.heads import LinearHead

_NUMBER = re.compile(r"(?<!\w)-?\d+")  # as in "4 stars", but not in "LABEL_4"
_TRUTH = {"true": "1", "false": "0"}  # names that booleans, which are numbers, may mean


def class_labels(config: Any, n_classes: int, y: Iterable[Any] | None = None) -> list[Any]:
    """Return the labels of classes by their ids, spelled as in `y`, as :doc:`/guide/heads` says."""
    ids, given = list(range(n_classes)), config.id2label or {}
    names = [str(given[i]) for i in ids] if {*given} == {*ids} else []
    names = names if len({*names}) == n_classes else []
    if y is None:
        return ids if names == [f"LABEL_{i}" for i in ids] else names or ids
    if (labels := {*y}) <= {*names}:
        return names
    found = [_NUMBER.findall(_TRUTH.get(name.lower(), name)) for name in names]
    numbers = [int(each[0]) for each in found if len(each) == 1]
    ways: list[list[Any]] = [ids, [*map(str, ids)], numbers, [*map(str, numbers)]]
    fitting = [way for way in ways if len({*way}) == n_classes and labels <= {*way}]
    if len({tuple(map(way.index, labels)) for way in fitting}) > 1:
        raise ValueError(
            f"y holds {sorted(labels)}, which may be ids, 0 to {n_classes - 1}, or the numbers in "
            f"the names {names} of the checkpoint's classes: pass these names, or map your labels "
            "to them, AdaptedEncoder(…, class_names={…}) or --class-names"
        )
    return fitting[0] if fitting else names or ids


def checkpoint_head(encoder: Any, y: Any, class_names: Any = None) -> LinearHead | None:
    """Return the head for `y` or the keys of `class_names`; raise ValueError for other labels."""
    head = encoder.head(y if class_names is None else [*class_names.values()])
    if class_names is not None:
        own = {name: label for label, name in class_names.items()}
        known = [] if head is None or head.classes_ is None else head.classes_.tolist()
        if len(own) < len(class_names) or own.keys() != {*known}:
            raise ValueError(
                f"class_names={class_names!r} must map your labels, one to one, to all classes of "
                f"the checkpoint's head, which are {known}"
            )
        head = head._renamed(own)
    if head is None or y is None or not (unknown := head._unknown_labels(y)):
        return head
    known, way_out = f"the checkpoint predicts {head._known()}", ""
    if class_names is not None:
        known = f"class_names has the keys {head._known()}: use one spelling, or leave it out"
    elif isinstance(unknown[0], tuple) and not head.multi_label_:
        known += ", one for each row: pass one column"
    elif head.classes_ is not None and not head.multi_label_:
        known += f" or, by their ids, 0 to {len(head.classes_) - 1}"
        flags = ",".join(f"{each}=…" for each in unknown[:2])
        pairs = ", ".join(f"{each!r}: …" for each in unknown[:2])
        way_out = "If yours mean the same classes, map all of them to these names: AdaptedEncoder("
        way_out += f"…, class_names={{{pairs}}}) or --class-names {flags}. "
    raise ValueError(
        f"y holds {unknown[:5]}, but {known}. {way_out}For another task, fit a new head with "
        "head='logistic' or --head logistic"
    )


def with_checkpoint_names(adapter: Any, class_names: Any) -> Any:
    """Return a fitted adapter whose heads predict what `class_names` maps their labels to."""
    named = copy.copy(adapter)
    for key in ("head", "head_") if class_names else ():
        if isinstance(head := getattr(adapter, key), LinearHead):
            setattr(named, key, head._renamed(class_names))
    return named
