"""Which adapters the tests show to help or to harm, and sentences that say so."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from isoadapt.model_selection._compare._methods import ADAPTER, BASELINE, HEAD_REFIT, SECOND_PASS
from isoadapt.model_selection._compare._paired_tests import LEVEL
from isoadapt.model_selection._compare._uses import TASKS, phrase_of

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


def by_score(rows: Sequence[Row]) -> list[Row]:
    """Order rows, the highest score first."""
    return sorted(rows, key=lambda row: -row["score"])


def best(rows: Sequence[Row]) -> Row | None:
    """Return the credited adapter to name, as `Comparison.credited` describes it."""
    credited = [*filter(is_credited, by_score(rows))]
    equal = [row for row in credited if row["score"] >= credited[0]["ci_low"]]
    equal = [row for row in equal if row["keeps_predictions"]] or equal
    longest = 2 * min((row["fit_seconds"] for row in equal), default=0.0)
    return next((row for row in equal if row["fit_seconds"] <= longest), None)


def sentence(rows: Sequence[Row]) -> str:
    """Return the verdict on one use from its rows of the table."""
    if is_of_index(rows):
        return _of_index(*rows)
    metric, phrase = rows[0]["metric"], phrase_of(rows[0]["use"])
    (base,) = (row for row in rows if row["kind"] == BASELINE)
    tests = is_credited, is_explained, is_worse
    better, explained, worse = ([*filter(test, by_score(rows))] for test in tests)
    clauses, named = [], best(rows)
    if named is not None:
        clauses.append(_gain(base, better, named))
    if explained:
        clauses.append(_no_credit(base, explained, bool(better)))
    if not (better or explained):
        n = sum(math.isnan(row["p_holm"]) for row in rows if row["kind"] == ADAPTER)
        few = f" ({n} untested, because too few rows, pairs or queries change)" if n else ""
        clauses.append(
            f"none of the adapters raised the {metric}, {base['score']:.3f} without one, "
            f"beyond noise{few}"
        )
    if worse:
        lowest = f"{_name(worse[-1])} the most, " if len(worse) > 1 else ""
        verb = "lower it," if lowest else "lowers it"
        clauses.append(f"{_names(worse)} {verb} {lowest}to {_shown(base, worse[-1])[1]}")
    caution = ""
    if named is not None and (n_adapters := sum(row["kind"] == ADAPTER for row in rows)) > 1:
        caution = (
            f" {_name(named)} was chosen among {n_adapters} adapters on these rows: expect a "
            "smaller gain on fresh rows, and confirm it there."
        )
    return f"{phrase}, {'; '.join(clauses)}.{caution}"


def headline(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the best adapter of a use, or that none is known, and the scores with and without."""
    base, metric, named = rows[0], rows[0]["metric"], best(rows)
    if is_of_index(rows):
        top = by_score(rows[1:] or rows)[0]
        return top["adapter"], f"{metric} {top['score']:.3f}, of the teacher {base['score']:.3f}"
    if named is None:
        return "none is shown to help", f"{metric} {base['score']:.3f} without one"
    before, after = _shown(base, named)
    return named["adapter"], f"{metric} {before} → {after}, changes {_changed(named)}"


def is_of_index(rows: Sequence[Row]) -> bool:
    """Whether the rows of a use are compared with the teacher, which is then the first."""
    return rows[0]["adapter"] == SECOND_PASS


def _of_index(teacher: Row, *others: Row) -> str:
    """Say how well queries by the classifier do in the index of the teacher, without tests."""
    found = [f"{row['score']:.3f} by {_name(row)}" for row in others]
    listed = ", ".join([*found, f"{teacher['score']:.3f} by the teacher itself"])
    return f"{phrase_of(teacher['use'])}, the {teacher['metric']} of queries is {listed}."


def _gain(base: Row, better: Sequence[Row], named: Row) -> str:
    """Say what the named adapter gains, what the one with the highest score does, and who else."""
    before, after = _shown(base, named)
    of_vectors = named["use"] not in TASKS
    text = f"{_name(named)} raises the {named['metric']} from {before} to {after}"
    if named["control"] is not None:
        score = named["score"] - named["control_difference"]
        text += f", beyond its control {named['control']!r} ({score:.3f}){',' * of_vectors}"
    if of_vectors:
        text += f" and changes {_changed(named)}"
    others = [row for row in better if row is not named]
    harmless = [row for row in others if of_vectors and row["keeps_predictions"]]
    if named is not better[0]:
        others.remove(better[0])
        text += f"; {_name(better[0])} reaches {_shown(base, better[0])[1]}"
        text += f" and changes {_changed(better[0])}"
    elif harmless and not named["keeps_predictions"]:
        others.remove(harmless[0])
        after = _shown(base, harmless[0])[1]
        text += f"; {_name(harmless[0])} raises it to {after} and changes no prediction"
    if others:
        text += f"; {_names(others)} {'raises' if len(others) == 1 else 'raise'} it too"
    return text


def _changed(row: Row) -> str:
    """Number of changed predictions, in words, which say "no" only if this is guaranteed."""
    n = row["changed_predictions"]
    guaranteed = row["keeps_predictions"] and not n
    return "no prediction" if guaranteed else f"{n} of {row['n_predictions']} predictions"


def _no_credit(base: Row, explained: Sequence[Row], after_gain: bool) -> str:
    """Say which control explains the gains of adapters."""
    first = explained[0]
    control, score = first["control"], first["score"] - first["control_difference"]
    if after_gain and len(explained) == 1:
        return f"{_name(first)} is not shown to gain more than {control!r}"
    if after_gain:
        return f"{_names(explained)} are not shown to gain more than their controls"
    before, after = _shown(base, first)
    alone = "a refitted head" if control == HEAD_REFIT else f"the control {control!r}"
    return (
        f"{alone} alone raises the {first['metric']} from {before} to {score:.3f}, and no adapter "
        f"is shown to add to it; {_name(first)} reaches {after}"
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
