"""Which adapters the tests show to help or to harm, and sentences that say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isoadapt.model_selection._compare._methods import ADAPTER, BASELINE
from isoadapt.model_selection._compare._paired_tests import LEVEL
from isoadapt.model_selection._compare._uses import USES, Wording

Row = Mapping[str, Any]


def is_credited(row: Row) -> bool:
    """Whether an adapter is shown to be better than no adapter and than its controls."""
    if row["kind"] != ADAPTER or not _is_shown(row, "difference", "p_holm", 1):
        return False
    return row["control"] is None or _is_shown(row, "control_difference", "control_p_holm", 1)


def is_explained(row: Row) -> bool:
    """Whether an adapter is shown to be better than no adapter, but not than a control."""
    shown = row["kind"] == ADAPTER and _is_shown(row, "difference", "p_holm", 1)
    return shown and not is_credited(row)


def is_worse(row: Row) -> bool:
    """Whether an adapter is shown to be worse than no adapter."""
    return row["kind"] == ADAPTER and _is_shown(row, "difference", "p_holm", -1)


def _is_shown(row: Row, difference: str, p_value: str, sign: int) -> bool:
    return row[p_value] <= LEVEL and sign * row[difference] > 0  # False for NaN


def sentence(rows: Sequence[Row]) -> str:
    """Return the verdict on one use from its rows of the table."""
    use = USES[rows[0]["use"]]
    if rows[0]["use"] == "index":
        return _of_index(use, *rows)
    (base,) = (row for row in rows if row["kind"] == BASELINE)
    by_score = sorted(rows, key=lambda row: -row["score"])
    better, explained, worse = (
        [row for row in by_score if test(row)] for test in (is_credited, is_explained, is_worse)
    )
    clauses = []
    if better:
        clauses.append(_gain(base, better, use))
    if explained:
        clauses.append(_no_credit(base, explained, use, bool(better)))
    if not (better or explained):
        change = "raise" if worse else "change"
        clauses.append(
            f"no adapter is shown to {change} the {use.metric}, which is "
            f"{base['score']:.3f} without one"
        )
    if worse:
        lowest = f"{_name(worse[-1])} the most, " if len(worse) > 1 else ""
        verb = "lower it," if lowest else "lowers it"
        clauses.append(f"{_names(worse)} {verb} {lowest}to {_shown(base, worse[-1])[1]}")
    caution = ""
    if better and (n_adapters := sum(row["kind"] == ADAPTER for row in rows)) > 1:
        caution = (
            f" {_name(better[0])} is the best of {n_adapters} adapters on these rows: expect a "
            "smaller gain on fresh rows, and confirm it there."
        )
    return f"{use.phrase}, {'; '.join(clauses)}.{caution}"


def _of_index(use: Wording, teacher: Row, *others: Row) -> str:
    """Say how well queries by the classifier do in the index of the teacher, without tests."""
    found = [f"{row['score']:.3f} by {_name(row)}" for row in others]
    listed = ", ".join([*found, f"{teacher['score']:.3f} by the teacher itself"])
    return f"{use.phrase}, the {use.metric} of queries is {listed}."


def _gain(base: Row, better: Sequence[Row], use: Wording) -> str:
    best, *others = better
    before, after = _shown(base, best)
    text = f"{_name(best)} raises the {use.metric} from {before} to {after}"
    if best["control"] is not None:
        score = best["score"] - best["control_difference"]
        text += f", beyond its control {best['control']!r} ({score:.3f})"
    changed = best["changed_predictions"]
    if use.of_vectors:
        counted = f"{changed} of {best['n_predictions']} predictions"
        comma = "," if best["control"] is not None else ""
        text += f"{comma} and changes {counted if changed else 'no prediction'}"
    harmless = [row for row in others if use.of_vectors and not row["changed_predictions"]]
    if harmless and changed:
        others.remove(harmless[0])
        after = _shown(base, harmless[0])[1]
        text += f"; {_name(harmless[0])} raises it to {after} and changes no prediction"
    if others:
        text += f"; {_names(others)} {'raises' if len(others) == 1 else 'raise'} it too"
    return text


def _no_credit(base: Row, explained: Sequence[Row], use: Wording, after_gain: bool) -> str:
    best = explained[0]
    control, score = best["control"], best["score"] - best["control_difference"]
    if after_gain and len(explained) == 1:
        return f"the gain of {_name(best)} is not shown to exceed that of {control!r}"
    if after_gain:
        return f"the gains of {_names(explained)} are not shown to exceed those of their controls"
    before, after = _shown(base, best)
    return (
        f"no adapter is shown to beat its control: {_name(best)} raises the {use.metric} from "
        f"{before} to {after}, but the control {control!r} reaches {score:.3f}, so the gain is not "
        "credited to the adapter"
    )


def _shown(base: Row, row: Row) -> tuple[str, str]:
    """Scores of the baseline and of a row, with as many digits as they differ in."""
    for digits in (3, 5, 9):
        before, after = (f"{each['score']:.{digits}f}" for each in (base, row))
        if before != after:
            return before, after
    return f"{base['score']:.3f}", f"{row['score']:.3f}"


def _names(rows: Sequence[Row]) -> str:
    """Up to three names, or the number of more."""
    names = [_name(row) for row in rows]
    if len(names) > 3:
        return f"{len(names)} {'others' if is_credited(rows[0]) else 'adapters'}"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _name(row: Row) -> str:
    """Name of an adapter, in quotes if it has several parts."""
    return repr(row["adapter"]) if "," in row["adapter"] else row["adapter"]
