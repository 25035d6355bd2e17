"""The report of the comparisons: tables, verdicts and checks as Markdown."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks._markdown import markdown_table
from benchmarks.quality._comparison_blocks import (
    LEVEL,
    Count,
    covered,
    family_errors,
    found_effects,
)
from benchmarks.quality._comparison_tasks import Compared
from benchmarks.quality._comparison_trials import (
    BASE_ACCURACY,
    CORRELATIONS,
    EFFECT,
    Setting,
    Trial,
    noise_precision,
    spearman,
)

FAMILY = 10  # adapters of the larger family in the table of planted effects
POWER = 0.8
MINUTES = {"fast": 3, "all": 45}

_COLUMNS = ("classify", "similarity", "neighbours")
_TITLES = {"classify": "accuracy", "similarity": "STS-B", "neighbours": "same class"}

_METRICS = _TITLES | {"similarity": "similarity"}  # of generated pairs

Trials = Mapping[Setting, Sequence[Trial]]
Runs = Mapping[tuple[str, str], Compared]


# --- comparisons on stored embeddings ------------------------------------------------------------


def tasks_text(runs: Runs) -> str:
    """Return the seconds, the verdicts and the tables of all runs."""
    header = [
        "task",
        "adapters",
        "fitted to",
        "judged on",
        "pairs",
        "seconds",
        "CPU seconds",
        "limit",
    ]
    seconds = [
        [
            task,
            f"{adapters} ({len(_table(found, 'classify'))} rows)",
            f"{found.n_train:,}",
            f"{found.n_judged:,}",
            f"{found.n_pairs:,}" if found.n_pairs else "",
            f"{found.seconds:,.0f}{' (resumed)' if found.resumed else ''}",
            f"{found.cpu_seconds:,.0f}",
            f"{60 * MINUTES[adapters]:,}",
        ]
        for (task, adapters), found in runs.items()
    ]
    parts = [markdown_table(header, seconds)]
    for (task, adapters), found in runs.items():
        sentences = "\n".join(f"- {sentence}" for sentence in found.verdict.values())
        notes = "\n".join(f"- Note: {note}" for note in found.notes)
        title = f'### {task}, adapters="{adapters}"'
        parts += [title, "\n".join(filter(None, (sentences, notes))), task_table(found)]
    return "\n\n".join(parts)


def task_table(found: Compared) -> str:
    """Return the table of one comparison; a credited gain is bold."""
    uses = [use for use in _COLUMNS if use in found.verdict]
    by_use = {use: {row["adapter"]: row for row in _table(found, use)} for use in uses}
    header = ["", *(part for use in uses for part in (_TITLES[use], "difference", "p Holm"))]
    rows = []
    for name, row in by_use["classify"].items():
        cells = [part for use in uses for part in _use_cells(by_use[use][name])]
        changed = f"{row['changed_predictions']} of {row['n_predictions']:,}"
        score = "" if row["isoscore_corrected"] is None else f"{row['isoscore_corrected']:.4f}"
        rows.append([name, *cells, score, changed, f"{row['fit_seconds']:.1f}"])
    return markdown_table([*header, "IsoScore, corrected", "changed", "fit s"], rows)


def _table(found: Compared, use: str) -> list[dict[str, Any]]:
    return [row for row in found.rows if row["use"] == use]


def _use_cells(row: Mapping[str, Any]) -> list[str]:
    score = f"{row['score']:.3f}"
    if row["difference"] is None:
        return [score, "", ""]
    low, high = row["difference_low"], row["difference_high"]
    p_value = "" if row["p_holm"] is None else f"{row['p_holm']:.3f}"
    difference = f"{row['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"
    return [f"**{score}**" if is_credited(row) else score, difference, p_value]


def is_credited(row: Mapping[str, Any]) -> bool:
    """Whether the row of an adapter beats no adapter and, where it has one, its hardest control."""
    names = [("difference", "p_holm")]
    if row["control"] is not None:
        names.append(("control_difference", "control_p_holm"))
    return all(
        row[p_value] is not None and row[p_value] <= LEVEL and row[difference] > 0
        for difference, p_value in names
    )


def changed_line(runs: Runs) -> str:
    """Say which share of the predictions adapters change, which are the discordant rows."""
    shares = [
        row["changed_predictions"] / row["n_predictions"]
        for found in runs.values()
        for row in _table(found, "classify")
        if row["kind"] == "adapter" and row["changed_predictions"]
    ]
    if not shares:
        return ""
    low, middle, high = np.quantile(shares, [0.1, 0.5, 0.9])
    return (
        f"In the tables above, an adapter that changes predictions changes {middle:.1%} of them at "
        f"the median, and {low:.1%} to {high:.1%} from the first to the last decile."
    )


def task_checks(runs: Runs) -> list[str]:
    """Return whether each run was fast enough."""
    return [
        f"{task}, {adapters}: under {MINUTES[adapters]} minutes: "
        f"{_yes(found.seconds < 60 * MINUTES[adapters] and not found.resumed)} "
        f"({found.seconds:,.0f} s; {found.cpu_seconds:,.0f} s of the CPU)"
        for (task, adapters), found in runs.items()
    ]


# --- trials --------------------------------------------------------------------------------------


def trials_text(trials: Trials) -> str:
    """Return the tables of noise, of planted effects and of the coverage of intervals."""
    return "\n\n".join(
        (
            "### Labels that are noise",
            _noise_table(trials),
            f"### Planted effects of {100 * EFFECT:.0f} points",
            _planted_table(trials),
            "### Coverage of the 95 % intervals",
            _coverage_table(trials),
        )
    )


def _noise_table(trials: Trials) -> str:
    rows = []
    for setting, own in trials.items():
        if setting.discordance is None:
            for use in own[0].p:
                errors = family_errors(own, use)
                rows.append(
                    [setting.protocol, use, _cell(errors), f"{errors.not_above(LEVEL):.3f}"]
                )
    return markdown_table(["protocol", "use", "any adapter differs", "p, at most 5 %"], rows)


def _planted_table(trials: Trials) -> str:
    rows = []
    for setting, own in trials.items():
        if setting.discordance is not None:
            counts = [found_effects(own, "classify", family) for family in (1, FAMILY)]
            rows.append([setting.protocol, f"{setting.discordance:.0%}", *map(_cell, counts)])
    header = ["protocol", "discordant rows", "found, family of 1", f"found, family of {FAMILY}"]
    return markdown_table(header, rows)


def _coverage_table(trials: Trials) -> str:
    rows = []
    for setting, own in trials.items():
        for use, interval, count in coverages(setting, own):
            what = f"{_METRICS[use]}, {interval}"
            p_value = f"{count.equal_to(1 - LEVEL):.3f}"
            rows.append([setting.protocol, _drawn(setting), what, _cell(count), p_value])
    return markdown_table(["protocol", "rows", "interval", "covered", "p, equal to 95 %"], rows)


def coverages(setting: Setting, trials: Sequence[Trial]) -> list[tuple[str, str, Count]]:
    """Return how many intervals hold the truth, by use and kind, where the truth is known."""
    truths = {"classify": (0.5, 0.0), "neighbours": (noise_precision(setting.protocol), 0.0)}
    if setting.discordance is not None:
        before, after = map(spearman, CORRELATIONS)
        truths = {
            "classify": (BASE_ACCURACY + EFFECT, EFFECT),
            "similarity": (after, after - before),
        }
    return [
        (use, interval, covered(trials, use, interval, truth))
        for use, pair in truths.items()
        if use in trials[0].p
        for interval, truth in zip(("score", "difference"), pair, strict=True)
    ]


def trial_checks(trials: Trials) -> list[str]:
    """Return whether errors, power and coverage are as they should be."""
    lines = []
    for setting, own in trials.items():
        what = f"{setting.protocol}, {_drawn(setting)}"
        if setting.discordance is None:
            for use in own[0].p:
                errors = family_errors(own, use)
                good = errors.not_above(LEVEL) > LEVEL
                lines.append(f"{what}, {use}: family-wise errors not above 5 %: {_yes(good)}")
        else:
            for family in (1, FAMILY):
                power = found_effects(own, "classify", family).share
                lines.append(
                    f"{what}, family of {family}: found in at least {POWER:.0%}: "
                    f"{_yes(power >= POWER)} ({power:.0%})"
                )
        for use, interval, count in coverages(setting, own):
            good = count.equal_to(1 - LEVEL) > LEVEL
            wide = ", conservative" if not good and count.share > 1 - LEVEL else ""
            lines.append(
                f"{what}, {_METRICS[use]}, {interval}: coverage of 95 % not rejected: {_yes(good)} "
                f"({count.share:.1%}{wide})"
            )
    return lines


def _drawn(setting: Setting) -> str:
    return "noise" if setting.discordance is None else f"planted, {setting.discordance:.0%}"


def _cell(count: Count) -> str:
    half = 1.96 * math.sqrt(count.share * (1 - count.share) / count.of)
    return f"{count.n} of {count.of} ({count.share:.1%} ± {half:.1%})"


def _yes(good: bool) -> str:
    return "yes" if good else "**no**"
