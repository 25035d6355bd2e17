"""When whitening helps: evidence for advice without labels, `python -m benchmarks.quality.advice`.

Each case is one pooling of one checkpoint. Its figures are those of the vectors of training texts;
its outcome is the change of the similarity correlation on STS-B by whitening. Finished cases are
saved in a file, so that an interrupted run can be resumed. The result is printed as Markdown;
`--write FILE` writes it to a section of that file.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from scipy.stats import spearmanr

from benchmarks._markdown import markdown_table
from benchmarks._places import FOLDER
from benchmarks._versions import versions, written
from benchmarks.quality._advice_cases import (
    FIGURES,
    MAX_TEXTS,
    Key,
    Outcome,
    all_cases,
    measure_case,
    outcome_line,
    outcome_store,
)
from benchmarks.quality._advice_rules import RELIABLE, fit_threshold, fit_zone, judge
from benchmarks.quality._checkpoints import EPOCHS, RECIPES
from benchmarks.quality._command import add_write_option, publish, run_resumable

CELLS = FOLDER / "quality" / "results" / "advice.jsonl"
SHOWN = ("isoscore_corrected", "ev1", "mean_cosine", "effective_rank_share", "hubness", "two_nn")

Cases = Sequence[tuple[Key, Outcome]]


def obtain_outcomes(options: argparse.Namespace) -> Cases:
    """Read the outcomes of the cases from the file, or measure and save those that are missing."""
    store = outcome_store(options.cells, options.fresh)
    found = []
    for case in all_cases(options.tasks, options.epochs):
        key = case.key()
        outcome = store.get(key)
        if outcome is None and options.stored:
            continue
        if outcome is None:
            outcome = measure_case(case)
            store.add(outcome_line(key, outcome))
            print(" · ".join(map(str, key[:4])), file=sys.stderr, flush=True)
        found.append((key, outcome))
    return found


def advice_text(cases: Cases, setting: str) -> str:
    """Return the section: the rules, the cases, and how they were measured."""
    outcomes = [outcome for _, outcome in cases]
    gaining = sum(outcome.gains for outcome in outcomes)
    summary = (
        f"Whitening raises the correlation in {gaining} of {len(outcomes)} cases. Rules are fitted "
        "to all tasks but one and judged on that one, for each task. With a zone, a rule abstains "
        f"between two bounds, beyond each of which at least {RELIABLE:.0%} of the fitted cases are "
        "answered rightly. “Majority” is the hit rate of the rule that always gives the more "
        "frequent answer of the other tasks, on the same answered cases. “Best figure” chooses the "
        "figure on the other tasks too. It is the fair comparison: the best of the other rows is "
        "chosen among ten after the fact."
    )
    parts = (summary, _verdict(outcomes), _rules_table(outcomes), _cases_table(cases))
    return "\n\n".join([*parts, _protocol(cases), f"Measured with {setting}."])


def _verdict(outcomes: Sequence[Outcome]) -> str:
    """Return whether the rule with a zone and a chosen figure beats the majority rule."""
    score = judge(fit_zone, outcomes)
    beats = score.right > score.majority and score.better > score.worse
    return (
        f"The best figure with a zone {'beats' if beats else 'does not beat'} the majority rule: "
        f"{score.right} against {score.majority} right of {score.answered} answers, better on "
        f"{score.better} and worse on {score.worse} of {len({o.task for o in outcomes})} tasks."
    )


def _protocol(cases: Cases) -> str:
    """Return how the cases were measured, with the training rows of the runs that they hold."""
    names = {f"{epoch} epoch{'s' * (epoch > 1)}" for epoch in EPOCHS}
    runs = {key.task for key, _ in cases if key.checkpoint in names}
    rows = ", ".join(f"{name} {RECIPES[name].rows}" for name in RECIPES if name in runs)
    return (
        f"Figures are those of the vectors of at most {MAX_TEXTS:,} single training texts of the "
        'task, without texts of the STS-B test split. The map is `Whitening(shrinkage="oas")`, '
        "fitted to the same vectors. The outcome is the Spearman correlation of cosines with the "
        "scores of the 1,379 test pairs of STS-B, before and after the map. “0 epochs” is "
        "all-MiniLM-L6-v2, whose head input is the output of its pooler, with the texts of the "
        "task. The checkpoints of 1, 5 and 20 epochs come from one run for each task, on few "
        f"training rows: {rows or 'none'}. Cases of one task share its texts, and cases of one "
        "checkpoint share its weights, so the cases are not independent."
    )


def _rules_table(outcomes: Sequence[Outcome]) -> str:
    rows = []
    kinds = [("best figure", FIGURES), *((figure, (figure,)) for figure in FIGURES)]
    for name, figures in kinds:
        for zone, fit in (("no", fit_threshold), ("yes", fit_zone)):
            score = judge(partial(fit, figures=figures), outcomes)
            usual = score.majority / score.answered if score.answered else float("nan")
            values = [outcome.figures[figures[0]] for outcome in outcomes]
            gains = [outcome.after - outcome.before for outcome in outcomes]
            correlation = f"{_correlation(values, gains):.2f}" if len(figures) == 1 else ""
            rows.append(
                [
                    name,
                    zone,
                    f"{score.hit_rate():.3f}",
                    f"{usual:.3f}",
                    f"{score.answered} of {score.cases}",
                    f"{score.better} / {score.worse}",
                    correlation,
                    str(fit(outcomes, figures)),
                ]
            )
    header = [
        "figure",
        f"zone ({RELIABLE:.0%})",
        "hit rate",
        "majority",
        "answered",
        "tasks better / worse",
        "Spearman with the change",
        "rule of all tasks",
    ]
    return markdown_table(header, rows)


def _correlation(values: Sequence[float], gains: Sequence[float]) -> float:
    return float(spearmanr(values, gains, nan_policy="omit").statistic)


def _cases_table(cases: Cases) -> str:
    header = ["task", "checkpoint", "vectors", "unit length", *SHOWN, "STS-B", "whitened", "change"]
    rows = [
        [
            key.task,
            key.checkpoint,
            key.pooling,
            "yes" if key.normalised else "no",
            *(f"{outcome.figures[name]:.3g}" for name in SHOWN),
            f"{outcome.before:.3f}",
            f"{outcome.after:.3f}",
            f"{outcome.after - outcome.before:+.3f}",
        ]
        for key, outcome in cases
    ]
    return markdown_table(header, rows)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality.advice")
    parser.add_argument(
        "--tasks", nargs="+", choices=RECIPES, default=list(RECIPES), metavar="TASK"
    )
    parser.add_argument(
        "--epochs", nargs="+", type=int, choices=(0, *EPOCHS), default=[0, *EPOCHS], metavar="N"
    )
    parser.add_argument("--cells", type=Path, default=CELLS, help="file of finished cases")
    parser.add_argument("--stored", action="store_true", help="only cases that are in the file")
    parser.add_argument("--fresh", action="store_true", help="measure all cases again")
    add_write_option(parser)
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    """Measure missing cases, then print and write the section."""
    cases = obtain_outcomes(options)
    publish(advice_text(cases, written(versions())), options.write, "advice")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the section."""
    return run_resumable(run, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
