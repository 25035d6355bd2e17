"""The curves of the pictures of the report, one picture for each paper."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.quality._adapter_rows import BASE as NO_ADAPTER, ISOBN, MINIBATCH, NO_PENALTY
from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import arrays_by_seed, by_seed, mean_of, of, paired
from benchmarks.reproduction._plan import FIRST_TASKS, SECOND_TASKS
from benchmarks.reproduction._posthoc import TOP
from benchmarks.reproduction._tables import TASKS
from benchmarks.reproduction._training import BASE
from benchmarks.reproduction.isotropy_calibration import EXPONENTIAL, FLOW, POLYNOMIAL
from benchmarks.reproduction.isotropy_layer import RAW
from benchmarks.reproduction.istar import COSREG, LAMS, istar
from benchmarks.reproduction.persistent_entropy import NAMES as BARS, SELECTED, TESTED

LEAST_LAMS = 3  # values of λ, 0 included, from which a curve over λ is drawn
PARTS = {  # centre of each part of the training steps, in percent, and its figure
    5.0: "batch_anisotropy1_centered_start",
    85.0: "batch_anisotropy1_centered",
    95.0: "batch_anisotropy1_centered_end",
}
SPECTRA = (NO_ADAPTER, NO_PENALTY, MINIBATCH, RAW, ISOBN)
TRAINED = (POLYNOMIAL.name, EXPONENTIAL.name, COSREG.name)

Values = Mapping[float, Mapping[int, float]]  # by position on the x axis and seed


class Curve(NamedTuple):
    """A figure against x, for each seed."""

    label: str
    values: Values

    @property
    def seeds(self) -> list[int]:
        """The seeds that have a value at any position."""
        return sorted(set().union(*self.values.values()))

    def of_seed(self, seed: int) -> tuple[list[float], list[float]]:
        """Return the positions and values of a seed."""
        known = {x: found[seed] for x, found in self.values.items() if seed in found}
        return list(known), list(known.values())

    def means(self) -> list[float]:
        """Return the mean over the seeds at each position."""
        return [mean_of(list(found.values())) for found in self.values.values()]


class Panel(NamedTuple):
    """The axes of a picture and their curves."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False
    is_share: bool = False  # values from 0 to 1, shown whole


class Picture(NamedTuple):
    """What the picture of a paper shows, and how its panels are made from the records."""

    caption: str
    panels: Callable[[Sequence[Record]], list[Panel]]


def _over_training(records: Sequence[Record]) -> list[Panel]:
    """Return the anisotropy of the training batches, for tasks with base and selected bars."""
    panels = []
    for task in TESTED:
        found = {
            name: {x: by_seed(records, of(name, task), figure) for x, figure in PARTS.items()}
            for name in BARS
        }
        curves = _drawn(found)
        if {BASE.name, SELECTED.name} <= {curve.label for curve in curves}:
            title, x, y = TASKS[task], "training steps, %", "centred anisotropy_1"
            panels.append(Panel(title, x, y, curves, is_share=True))
    return panels


def _over_lam(records: Sequence[Record]) -> list[Panel]:
    """Return IsoScore* and the change of the metric against λ, one curve for each task."""
    names = {0.0: BASE.name} | {lam: istar(lam).name for lam in LAMS}
    names = {lam: names[lam] for lam in sorted(names)}
    scores: dict[str, Values] = {}
    changes: dict[str, Values] = {}
    for task in (*FIRST_TASKS, *SECOND_TASKS):
        base = of(BASE.name, task)
        score = {
            lam: by_seed(records, of(name, task), "isoscore_star") for lam, name in names.items()
        }
        if sum(map(_is_known, score.values())) >= LEAST_LAMS:
            scores[TASKS[task]] = score
            changes[TASKS[task]] = {
                lam: paired(records, base, of(name, task), "metric").steps()
                for lam, name in names.items()
            }
    if not scores:
        return []
    return [
        Panel("Isotropy", "λ", "IsoScore* of the tokens", _drawn(scores), log_y=True),
        Panel("Task", "λ", "metric less the base's", _drawn(changes)),
    ]


def _spectra(records: Sequence[Record]) -> list[Panel]:
    """Return the explained variance with the layer and its controls, for tasks with both."""
    panels = []
    for task in (*FIRST_TASKS, *SECOND_TASKS):
        curves = _drawn({name: _explained(records, name, task) for name in SPECTRA})
        if {NO_ADAPTER, MINIBATCH} <= {curve.label for curve in curves}:
            panels.append(_spectrum_panel(task, curves))
    return panels


def _calibrated(records: Sequence[Record]) -> list[Panel]:
    """Return the explained variance with the flow, and of trained encoders up to k = 3."""
    panels = []
    for task in (*FIRST_TASKS, *SECOND_TASKS):
        found = {name: _explained(records, name, task) for name in (NO_ADAPTER, FLOW.name)}
        for name in TRAINED:
            found[name] = {float(k): by_seed(records, of(name, task), f"ev{k}") for k in (1, 2, 3)}
        curves = _drawn(found)
        if {NO_ADAPTER, FLOW.name} <= {curve.label for curve in curves}:
            panels.append(_spectrum_panel(task, curves))
    return panels


def _spectrum_panel(task: str, curves: Sequence[Curve]) -> Panel:
    return Panel(
        TASKS[task], "components k", "explained variance", curves, log_x=True, is_share=True
    )


def _explained(records: Sequence[Record], name: str, task: str) -> Values:
    seeds = arrays_by_seed(records, of(name, task), "explained_variance")
    whole = {seed: curve for seed, curve in seeds.items() if len(curve) == TOP}
    return {
        float(k + 1): {seed: float(curve[k]) for seed, curve in whole.items()} for k in range(TOP)
    }


def _drawn(found: Mapping[str, Values]) -> list[Curve]:
    """Return the curves that have values, without undefined values and empty positions."""
    return [
        Curve(label, {x: _finite(ys) for x, ys in values.items() if _is_known(ys)})
        for label, values in found.items()
        if any(map(_is_known, values.values()))
    ]


def _finite(values: Mapping[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if math.isfinite(value)}


def _is_known(values: Mapping[int, float]) -> bool:
    return bool(_finite(values))


PICTURES = {
    "000": Picture(
        "Centred anisotropy_1 of the head's input on training batches: means over the first tenth, "
        "the last 30 % and the last tenth of the training steps, joined by straight lines",
        _over_training,
    ),
    "002": Picture(
        "IsoScore* of the dev set's tokens, all layers, and the change of the task's metric "
        "against λ; λ = 0 is the base",
        _over_lam,
    ),
    "003": Picture(
        "Variance of the dev embeddings that the first k components explain, before and after the "
        "Isotropy Layer",
        _spectra,
    ),
    "004": Picture(
        "Variance of the dev embeddings that the first k components explain, with the flow; for "
        "spectrum control and CosReg, which train the encoder, up to k = 3",
        _calibrated,
    ),
}
