"""Paper 004, tables 1 and 4: CosReg, spectrum control and a flow during fine-tuning."""

from collections.abc import Sequence

from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import by_seed, n_planned, of
from benchmarks.reproduction._output_embeddings import PENALTIES, TASK as TINY
from benchmarks.reproduction._posthoc import row_named
from benchmarks.reproduction._tables import TASKS, condition_table, metric_name, tasks_of
from benchmarks.reproduction._training import BASE, Condition
from benchmarks.reproduction._verdicts import (
    SEEDS_NEEDED,
    Claim,
    Headline,
    Judged,
    judge_steps,
    moves,
    none_better,
    not_testable,
    stays,
    waiting,
)
from benchmarks.reproduction.istar import COSREG, NOTABLE

COSREG_HEAD = Condition("CosReg", "cosreg")
POLYNOMIAL = Condition("spectrum control, polynomial", "spectrum-control", {"decay": "polynomial"})
EXPONENTIAL = Condition(
    "spectrum control, exponential", "spectrum-control", {"decay": "exponential"}
)
FLOW = row_named("FlowAdapter, head refit")
EARLIER_FLOW = "flow"  # its name in earlier records
FIRST = (COSREG.name, POLYNOMIAL.name, FLOW.name)
LATER = (COSREG_HEAD.name, EXPONENTIAL.name)  # on CoLA only
NAMES = (*FIRST, *LATER, EARLIER_FLOW)
TESTED = ("cola", "mrpc", "rte", "sst2_sentence")
NONE_GAINS = Headline(f"No method is better than the base by more than {NOTABLE:g}")
SLIGHT = 0.01  # spread of I1 in the paper
NO_CLOCK = (
    "runs at different times on shared cores cannot tell; benchmarks/speed/finetuning.py compares "
    "steps one after the other"
)


def claims() -> list[Claim]:
    """Return the claims of tables 1 and 4, the claims on time, and those that are not testable."""
    return [
        *map(_none_better, TESTED),
        *_ruin_claims(),
        *_spectrum_claims("cola", POLYNOMIAL.name),
        *_spectrum_claims("cola", EXPONENTIAL.name),
        *_spectrum_claims("mrpc", POLYNOMIAL.name),
        *_spectrum_claims("sst2_sentence", POLYNOMIAL.name),
        *map(_unmoved, (COSREG.name, COSREG_HEAD.name, FLOW.name)),
        Claim(
            "section 3",
            "Penalties on output embeddings are lowered in training: the path works, on a tiny "
            "random T5, against the same steps without the penalty",
            "no such figure",
            _path_works,
        ),
        *_untested(),
    ]


def _none_better(task: str) -> Claim:
    names = FIRST + LATER if task == "cola" else FIRST
    base = of(BASE.name, task)
    return Claim(
        "table 1",
        f"{TASKS[task]}: no method is better than the base by more than {NOTABLE:g} of "
        f"{metric_name(task)}",
        "no significant gain with BERT (t-test), on any task",
        none_better({name: (base, of(name, task)) for name in names}, "metric", NOTABLE),
        task,
        NONE_GAINS,
    )


def _ruin_claims() -> list[Claim]:
    return [
        Claim(
            "table 1",
            f"CoLA: {name} ruins Matthews (at most half of it is left)",
            "0.5316 → 0 (BERT)",
            moves(of(BASE.name, "cola"), of(name, "cola"), "metric", -1, 2.0),
            "cola",
        )
        for name in (POLYNOMIAL.name, EXPONENTIAL.name)
    ]


def _spectrum_claims(task: str, name: str) -> list[Claim]:
    base, after = of(BASE.name, task), of(name, task)
    return [
        Claim(
            "table 4",
            f"{TASKS[task]}: {name} {word} {measure}",
            theirs,
            moves(base, after, figure, sign),
            task,
        )
        for measure, figure, word, sign, theirs in (
            ("I1", "partition_isotropy", "raises", 1, "0.91 → 0.99 or more (BERT)"),
            ("I2", "partition_dispersion", "lowers", -1, "0.38–0.40 → 0.02 or less (BERT)"),
        )
    ]


def _unmoved(name: str) -> Claim:
    where = " (last layer's tokens)" if name == COSREG.name else ""
    return Claim(
        "table 4",
        f"CoLA: {name}{where} leaves I1 where it was (within {SLIGHT})",
        "0.91 → 0.91 (BERT)",
        stays(of(BASE.name, "cola"), of(name, "cola"), "partition_isotropy", SLIGHT),
        "cola",
    )


def _untested() -> list[Claim]:
    return [
        Claim(
            "section 4.1",
            "The flow takes a multiple of the time of an epoch",
            "on average over GLUE 4.2 times",
            not_testable(NO_CLOCK),
        ),
        Claim(
            "section 4.2",
            "Spectrum control takes 1.25 times the time or more (said of translation)",
            "108 → 176 and 170 min, 176 → 265 and 230 min (M-BART)",
            not_testable(NO_CLOCK),
        ),
        Claim(
            "tables 2, 3",
            "Translation and summarisation: spectrum control costs BLEU and ROUGE, CosReg does not",
            "EN-RO 26.15 → 22.94, CosReg 26.07",
            not_testable("needs M-BART, BART, WMT16 and CNN/DM, which are not available here"),
        ),
        Claim(
            "table 1",
            "The same with RoBERTa and DistilBERT",
            "2 of 60 are better",
            not_testable("needs these models, which are not available here"),
        ),
    ]


def _path_works(records: Sequence[Record]) -> Judged:
    """Judge by the smallest relative decrease among the three penalties, for each seed."""
    fields = [of(condition.name, TINY) for condition in PENALTIES]
    without, after = (
        [by_seed(records, item, figure) for item in fields] for figure in ("after_without", "after")
    )
    seeds = set.intersection(*map(set, after))
    if len(seeds) < SEEDS_NEEDED:
        return waiting("–", len(seeds))
    steps = {
        seed: min(
            1 - penalised[seed] / plain[seed]
            for penalised, plain in zip(after, without, strict=True)
        )
        for seed in sorted(seeds)
    }
    reason = "smallest share by which a penalty is lower; a random model's scores mean nothing"
    return judge_steps(steps, n_planned(records, *fields), "see interval", reason=reason)


def tables(records: Sequence[Record]) -> str:
    """Return tables 1 and 4 for each task that has records."""
    return "\n\n".join(_task_table(records, task) for task in tasks_of(records, NAMES))


def _task_table(records: Sequence[Record], task: str) -> str:
    columns = {
        "metric": metric_name(task),
        "accuracy": "accuracy",
        "cross_entropy": "cross-entropy",
        "partition_isotropy": "I1",
        "partition_dispersion": "I2",
        "isoscore_corrected": "IsoScore corrected",
        "anisotropy1_centered": "centred anisotropy_1",
        "batch_penalty_start": "penalty, first steps",
        "batch_penalty_end": "last steps",
        "training_seconds": "training, processor s/epoch",
    }
    return (
        f"Tables 1 and 4, {TASKS[task]}: spectrum control on what enters the head, CosReg there "
        f"(“{COSREG_HEAD.name}”) or on the last layer's tokens (“{COSREG.name}”); weight 1, for "
        "the paper gives no constants. I1 and I2 are those of the same vectors on the dev set and "
        "depend on their scale. The flow is fitted to the base run's embeddings and a head to its "
        f"outputs.\n\n{condition_table(records, task, (BASE.name, *NAMES), columns)}"
    )
