"""What `compare_adapters` finds on stored embeddings, judged on rows the encoder has not seen."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks._data import load_embeddings, load_unseen
from benchmarks._markdown import markdown_table
from benchmarks._places import RECORDS_FOLDER
from benchmarks._versions import measured_with
from benchmarks.quality import Cells, Record, _texts as texts
from benchmarks.quality._checkpoints import CHECKPOINTS
from isoadapt.model_selection import Similarity, compare_adapters

SECTION = "comparison"
RECORDS = RECORDS_FOLDER / "comparison_tasks.jsonl"
KEY = ("task", "adapters")
RUNS = (
    ("cola", "all"),
    ("mrpc", "fast"),
    ("rte", "fast"),
    ("sst2_sentence", "fast"),
)
ENCODERS = {"cola": "cola-minilm", "mrpc": "mrpc-minilm"}
TITLES = {"classify": "accuracy", "similarity": "STS-B", "neighbours": "same class"}
KEPT = (
    "use",
    "adapter",
    "kind",
    "score",
    "ci_low",
    "ci_high",
    "difference",
    "difference_low",
    "difference_high",
    "p_holm",
    "control",
    "control_difference",
    "control_p_holm",
    "isoscore_corrected",
    "changed_predictions",
    "n_predictions",
    "fit_seconds",
)
PROTOCOL = (
    "Stored embeddings: adapters are fitted to the training rows, on which the encoder was "
    "fine-tuned, and judged on the rows of dev (for MRPC and SST-2 dev and test) that are no "
    "copies of training rows. The head is that of the checkpoint. STS-B: the 1,379 test pairs, "
    "each text embedded alone; some of MRPC's training sentences occur in them. “same class” is "
    "the precision of the ten nearest judged rows.",
    "Differences are those from no adapter with their 95 % intervals; p Holm is adjusted for all "
    "adapters of the use. A bold score is credited: better than no adapter and than its hardest "
    "control. changed: predictions that differ from those without an adapter.",
    "Seconds are those of one process with one thread; CPU seconds leave out the waiting for other "
    "programs.",
)


def cells() -> Cells:
    """Yield a comparison for each task and choice of adapters."""
    for task, adapters in RUNS:
        yield (task, adapters), partial(measure, task, adapters)


def measure(task: str, adapters: str) -> dict[str, Any]:
    """Compare adapters and take the time of this process."""
    stored, (_, X_test, y_test) = load_embeddings(task), load_unseen(task)
    uses = []
    if task in ENCODERS:
        embed, test = CHECKPOINTS[ENCODERS[task]].vectors, texts.similarity("test")
        uses.append(Similarity(embed(test.first), embed(test.second), test.scores))
    wall, cpu = time.perf_counter(), time.process_time()
    found = compare_adapters(
        stored.X_train,
        stored.y_train,
        adapters,
        head=stored.head,
        X_test=X_test,
        y_test=y_test,
        encoder_saw=True,
        uses=uses,
        random_state=0,
    )
    rows = found.to_dict()["rows"]
    return {
        "rows": [{name: _rounded(row[name]) for name in KEPT} for row in rows],
        "verdict": {use: found.verdict(use) for use in found.uses},
        "notes": found.notes,
        "n_train": len(stored.X_train),
        "n_judged": len(X_test),
        "n_pairs": sum(len(use.scores) for use in uses),
        "seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def text(records: Sequence[Record]) -> str:
    """Return the seconds of all runs, the largest table, and the verdicts."""
    runs = {(found["task"], found["adapters"]): found for found in records}
    header = ["task", "adapters", "fitted to", "judged on", "pairs", "seconds", "CPU"]
    parts = [markdown_table(header, [_seconds(runs[run]) for run in RUNS if run in runs])]
    if ("cola", "all") in runs:
        parts += ['Of cola, adapters="all":', task_table(runs["cola", "all"])]
    sentences = [
        f"{task}, {adapters}: {sentence}"
        for task, adapters in RUNS
        if (task, adapters) in runs
        for sentence in runs[task, adapters]["verdict"].values()
    ]
    protocol = "\n".join(f"- {point}" for point in (*sentences, _changed(records), *PROTOCOL))
    settings = measured_with(found["setting"] for found in records)
    return "\n\n".join(part for part in (*parts, protocol, settings) if part)


def _seconds(found: Record) -> list[str]:
    return [
        found["task"],
        f"{found['adapters']} ({len(_rows(found, 'classify'))} rows)",
        *(f"{found[name]:,}" for name in ("n_train", "n_judged", "n_pairs")),
        *(f"{found[name]:,.0f}" for name in ("seconds", "cpu_seconds")),
    ]


def task_table(found: Record) -> str:
    """Return the table of one comparison; a credited gain is bold."""
    uses = [use for use in TITLES if use in found["verdict"]]
    by_use = {use: {row["adapter"]: row for row in _rows(found, use)} for use in uses}
    header = ["", *(part for use in uses for part in (TITLES[use], "difference", "p Holm"))]
    lines = []
    for name, row in by_use["classify"].items():
        shown = [part for use in uses for part in _use_cells(by_use[use][name])]
        changed = f"{row['changed_predictions']} of {row['n_predictions']:,}"
        score = "" if row["isoscore_corrected"] is None else f"{row['isoscore_corrected']:.4f}"
        lines.append([name, *shown, score, changed, f"{row['fit_seconds']:.1f}"])
    return markdown_table([*header, "IsoScore, corrected", "changed", "fit s"], lines)


def _rows(found: Record, use: str) -> list[dict[str, Any]]:
    return [row for row in found["rows"] if row["use"] == use]


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
        row[p_value] is not None and row[p_value] <= 0.05 and row[difference] > 0
        for difference, p_value in names
    )


def _changed(records: Sequence[Record]) -> str:
    """Say which share of the predictions adapters change, which are the discordant rows."""
    shares = [
        row["changed_predictions"] / row["n_predictions"]
        for found in records
        for row in _rows(found, "classify")
        if row["kind"] == "adapter" and row["changed_predictions"]
    ]
    low, middle, high = np.quantile(shares, [0.1, 0.5, 0.9])
    return (
        f"An adapter that changes predictions changes {middle:.1%} of them at the median, and "
        f"{low:.1%} to {high:.1%} from the first to the last decile."
    )
