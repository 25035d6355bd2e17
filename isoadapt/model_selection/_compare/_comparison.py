"""The result of a comparison of adapters: its table, its verdict, and how it is shown."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isoadapt._utils.messages import aligned_table, choices, html_paragraphs, html_table
from isoadapt.model_selection._compare._methods import CONTROL, HEAD_REFIT, SECOND_PASS
from isoadapt.model_selection._compare._uses import MAX_SOFTMAX, phrase_of
from isoadapt.model_selection._compare._verdict import best, by_score, is_credited, sentence

_WIDTH = 100  # columns of a terminal, to which sentences are wrapped
_GEOMETRY = {
    "isoscore": "IsoScore",
    "isoscore_corrected": "corrected",
    "ev1": "EV1",
    "mean_cosine": "mean cosine",
    "hubness": "hubness",
    "neighbour_overlap": "overlap",
}
_TASK = {
    "matthews": "Matthews",
    "cross_entropy": "cross-entropy",
    "mse": "MSE",
    "fit_seconds": "fit s",
    "transform_seconds": "transform s",
    "changed_predictions": "changed",
}
_Table = tuple[str, list[str], list[list[str]]]  # title, header and cells, as texts for people


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Result of :func:`compare_adapters`.

    It shows its tables and the verdict when it is printed, and as HTML in a notebook. It can be
    pickled.

    Attributes
    ----------
    rows : list of dict
        The table: one dict for each use and each row of the comparison, with the columns that
        :meth:`to_frame` describes.
    protocol : str
        How the figures were obtained, in one sentence.
    estimators : dict of str to estimator
        Each adapter by its name, fitted to all rows of X.
    notes : list of str
        Warnings of the fits, and adapters that were left out because their fit failed.
    """

    rows: list[dict[str, Any]]
    protocol: str
    estimators: dict[str, Any]
    notes: list[str]

    @property
    def uses(self) -> list[str]:
        """Names of the uses for which data were given.

        They are "classify" or "regress", the names of the uses that were passed, by default
        "similarity", "search" and "outliers", and "neighbours" and "index".
        """
        return list(dict.fromkeys(row["use"] for row in self.rows))

    def to_frame(self) -> Any:
        """Return the table as a data frame.

        Returns
        -------
        pandas.DataFrame
            One line for each use and adapter, with these columns. "use", "adapter"; "score" with
            its 0.95 interval "ci_low", "ci_high"; the "difference" from no adapter (of the use
            "index", from the teacher), its "p_value" and, after Holm's adjustment for all adapters
            of the use, "p_holm"; "kind": baseline, control or adapter; "metric"; "n_units", the
            number of independent rows, pairs or queries, or of clusters of dependent ones;
            "keeps_predictions", whether the method guarantees all predictions; the interval of the
            difference "difference_low", "difference_high"; "control", the one that is hardest to
            beat, with "control_difference", "control_p_value" and "control_p_holm". The other
            columns are the same for all uses: "isoscore", "isoscore_corrected", "ev1",
            "mean_cosine", "hubness" (skewness of the 10-occurrence), "neighbour_overlap" (share of
            the 10 nearest neighbours kept), figures of the task, "fit_seconds",
            "transform_seconds", "changed_predictions" and "n_predictions".
        """
        import pandas as pd

        return pd.DataFrame(self.rows)

    def best_adapter(self, use: str | None = None, *, same_predictions: bool = False) -> Any:
        """Return the best adapter for a use, fitted to all rows.

        Parameters
        ----------
        use : str, default=None
            One of ``uses``. None is the task, "classify" or "regress".
        same_predictions : bool, default=False
            Whether only adapters count that guarantee all predictions, not only of judged rows.

        Returns
        -------
        estimator or None
            The first of ``credited``, which the verdict names. None if there is none: then nothing
            speaks for an adapter in this use.

        Raises
        ------
        ValueError
            If the use is unknown, or no data were given for it.
        """
        names = self.credited(use)
        if same_predictions:
            kept = {row["adapter"] for row in self._rows_of(use) if row["keeps_predictions"]}
            names = [name for name in names if name in kept]
        return self.estimators[names[0]] if names else None

    def credited(self, use: str | None = None) -> list[str]:
        """Return the names of the adapters that are shown to help in a use.

        Parameters
        ----------
        use : str, default=None
            One of ``uses``. None is the task, "classify" or "regress".

        Returns
        -------
        list of str
            The adapters that are shown to be better than no adapter and than their controls, after
            Holm's adjustment: the best adapter, then the others by their score, the highest first.
            The best adapter is one of those whose score lies in the interval of the highest one;
            if some of these guarantee the predictions, only these count. Of them, it is the one
            with the highest score whose fit took at most twice the shortest time.

        Raises
        ------
        ValueError
            If the use is unknown, or no data were given for it.
        """
        rows = self._rows_of(use)
        named, credited = best(rows), filter(is_credited, rows)
        ordered = sorted(credited, key=lambda row: (row is not named, -row["score"]))
        return [row["adapter"] for row in ordered]

    def verdict(self, use: str | None = None) -> str:
        """Say in a sentence or two on one line for each use what the tests show.

        `use` is one of ``uses``; None is all of them, those with a credited adapter first.
        ValueError is raised if it is unknown, or no data were given for it.
        """
        uses = self._ordered_uses() if use is None else [use]
        return "\n".join(sentence(self._rows_of(each)) for each in uses)

    def to_dict(self) -> dict[str, Any]:
        """Return "protocol", "rows", "verdict" by use, and "notes", for JSON; NaN becomes None."""
        rows = [{k: None if v != v else v for k, v in row.items()} for row in self.rows]
        verdict = {use: self.verdict(use) for use in self.uses}
        return {"protocol": self.protocol, "rows": rows, "verdict": verdict, "notes": self.notes}

    def _ordered_uses(self) -> list[str]:
        """Give the uses, those for which an adapter is credited first."""
        return sorted(self.uses, key=lambda use: not self.credited(use))

    def _rows_of(self, use: str | None) -> list[dict[str, Any]]:
        use = self.uses[0] if use is None else use
        if use not in self.uses:
            raise ValueError(f"use={use!r} is not in this comparison; {choices(use, self.uses)}")
        return [row for row in self.rows if row["use"] == use]

    def _tables(self, full: bool) -> list[_Table]:
        """One table for each use and, if it is `full`, all columns, the geometry and the cost."""
        of_uses = [use_table(self._rows_of(use), full=full) for use in self.uses]
        if not full:
            return of_uses
        rows = self._rows_of(None)
        geometry = _figures_table("Geometry", _GEOMETRY, rows)
        judged = f"{rows[0]['n_predictions']:,} predictions"
        return [*of_uses, geometry, _figures_table(f"Cost, and figures of {judged}", _TASK, rows)]

    def _text(self, full: bool) -> str:
        verdict = "\n".join(_wrapped(sentence) for sentence in self.verdict().splitlines())
        tables = (
            f"{title}\n{aligned_table([header, *cells], rule=True)}"
            for title, header, cells in self._tables(full)
        )
        return "\n\n".join([verdict, *tables, *map(_wrapped, [self._legend(), self.protocol])])

    def _legend(self) -> str:
        """Say what the rows are that are not adapters."""
        meaning = {HEAD_REFIT: "a new head, the same vectors", SECOND_PASS: "the teacher's vectors"}
        meaning[MAX_SOFTMAX] = "the head's largest probability"
        names = dict.fromkeys(row["adapter"] for row in self.rows if row["kind"] == CONTROL)
        listed = [f"{name!r} ({meaning.get(name, 'trained for the task alone')})" for name in names]
        shown = ", ".join(listed) or "none"
        return f"Controls, beyond which an adapter must gain to be credited: {shown}."

    def __repr__(self) -> str:
        return self._text(full=False)

    def _repr_html_(self) -> str:
        said = html_paragraphs([*self.verdict().splitlines(), self._legend(), self.protocol])
        return f"<div>{said}{self._html_tables(full=False)}</div>"

    def _html_tables(self, full: bool) -> str:
        return "".join(html_table(*table) for table in self._tables(full))


def use_table(rows: Sequence[dict[str, Any]], full: bool = True) -> _Table:
    """Scores and differences of a use, by score, with a mark on the adapter that is named."""
    title = f"{phrase_of(rows[0]['use'])}: {rows[0]['metric']}, n = {rows[0]['n_units']:,}"
    header = ["", "score", "95 % interval", "difference"]
    header += ["p Holm", "beyond control", "p Holm"] * full + [""]
    cells, named = [], best(rows)
    for row in by_score(rows):
        interval = f"[{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
        own = [row["adapter"], f"{row['score']:.4f}", interval, _number(row["difference"], "+.4f")]
        beyond = _number(row["control_difference"], "+.4f")
        tests = [_p_value(row["p_holm"]), beyond, _p_value(row["control_p_holm"])]
        cells.append([*own, *tests * full, "  best" if row is named else ""])
    return title, header, cells


def _figures_table(title: str, names: dict[str, str], rows: Sequence[dict[str, Any]]) -> _Table:
    """Table of figures that do not depend on the use."""
    shown = [key for key in names if key in rows[0]]
    formats = {key: ".2f" if key.endswith("seconds") else ".4f" for key in shown}
    formats |= {"changed_predictions": "d"}
    cells = [[row["adapter"], *(_number(row[key], formats[key]) for key in shown)] for row in rows]
    return title, ["", *(names[key] for key in shown)], cells


def _wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _p_value(value: float) -> str:
    return "<0.001" if value < 0.001 else _number(value, ".3f")
