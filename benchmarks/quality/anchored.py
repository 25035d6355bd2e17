"""Repair after fine-tuning against an anchor during it, ``penalty="anchor"``.

MiniLM is fine-tuned on four fifths of the training rows; the other fifth chooses the weight of the
anchor, the largest whose mean accuracy is at most one standard error below that without an anchor.
"""

import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks._markdown import markdown_table
from benchmarks.quality import Cells, _figures as figures, _texts as texts
from benchmarks.quality._checkpoints import CHECKPOINTS, MANY, MAX_LENGTH, N_TRAINING
from isoadapt import LogitPreservingWhitening, TeacherReadout, load_checkpoint
from isoadapt.datasets import minilm_folder
from isoadapt.finetune import finetune_text_classifier

KEY = ("task", "lam", "seed")
TASKS = ("sst2_sentence", MANY, "cola", "mrpc")
WEIGHTS, SEEDS = (0.0, 0.1, 1.0, 10.0), (0, 1, 2)
RECIPE: dict[str, Any] = {"warmup": 0.05, "weight_decay": 0.0, "device": "cpu"}
FEW, ALL = {"epochs": 20, "lr": 1e-4}, {"epochs": 3, "lr": 5e-5}  # for few rows, and all of a task
MAPS = RAW, OWN, READOUT, MEAN = "raw", "LogitPreservingWhitening", "TeacherReadout", "mean pooling"
base_vectors = CHECKPOINTS["cola-minilm"].teacher_vectors


def cells() -> Cells:
    """Yield the cells of each weight, for each task and seed."""
    for lam, task, seed in product(WEIGHTS, TASKS, SEEDS):
        yield (task, lam, seed), partial(_cell, task, lam, seed)


def _cell(task: str, lam: float, seed: int) -> dict[str, Any]:
    of_task = texts.finetuning_rows if task in N_TRAINING else texts.training_rows
    rows, labels = (texts.drawn(part, len(part)) for part in of_task(task))
    n_train = round(0.8 * len(rows))
    recipe = RECIPE | (FEW if task in N_TRAINING else ALL) | {"random_state": seed}
    if lam:
        recipe |= {"penalty": "anchor", "lam": lam}
    with tempfile.TemporaryDirectory() as folder:
        model, started = Path(folder, "model"), time.process_time()
        finetune_text_classifier(minilm_folder(), rows[:n_train], labels[:n_train], model, **recipe)
        minutes = (time.process_time() - started) / 60
        return {**_figures(model, task, rows[n_train:], labels[n_train:]), "minutes": minutes}


def _figures(model: Path, task: str, rows: list[Any], labels: list[int]) -> dict[str, Any]:
    """Return the figures of a classifier; its held-out rows are given."""
    own, test, search = texts.own_texts(task), texts.similarity("test"), texts.entailment_search()
    encoder, head = load_checkpoint(model, pooling="readout", max_length=MAX_LENGTH)
    d = head.n_features_in_
    is_mean = np.array(["layer6_mean" in name for name in encoder.get_feature_names_out()])
    fit = encoder.transform(own.fit)
    whitening = LogitPreservingWhitening(head).fit(fit[:, :d])
    readout = TeacherReadout(head).fit(fit, base_vectors(own.fit))
    maps: dict[str, Any] = {
        RAW: lambda X: X[:, :d],
        OWN: lambda X: whitening.transform(X[:, :d]),
        READOUT: readout.transform,
        MEAN: lambda X: X[:, is_mean],
    }
    asked, searched = encoder.transform(search.queries), encoder.transform(search.documents)
    pairs, index = [encoder.transform(part) for part in test[:2]], base_vectors(search.documents)
    found = {
        name: (
            figures.similarity(of(pairs[0]), of(pairs[1]), test.scores),
            figures.reciprocal_rank(of(asked), of(searched), search.relevant, 10),
            figures.reciprocal_rank(of(asked), index, search.relevant, 10),
        )
        for name, of in maps.items()
    }
    predicted, judged = (head.predict(encoder.transform(x)[:, :d]) for x in (own.inputs, rows))
    return {
        "own task": figures.agreement(own.labels, predicted, matthews=task == "cola")[0],
        "held out": float(np.equal(judged, labels).mean()),
        "n held out": len(judged),
        "figures": {name: [value for value, _ in of] for name, of in found.items()},
        "predicted": predicted.tolist(),
    }


def text(frame: pd.DataFrame) -> str:
    """Return a row for each task and weight: means over the seeds."""
    lines, spreads = [], []
    for (task, lam), own in frame.groupby(["task", "lam"]):
        of_task = frame[frame["task"].eq(task)]
        plain = of_task[of_task["lam"].eq(0)].set_index("seed")["predicted"]
        changed = [
            np.mean(np.not_equal(record.predicted, plain[seed]))
            for record in own.itertuples()
            for seed in ([record.seed] if lam else plain.index.drop(record.seed))
        ]
        uses = np.array([[found[name] for name in MAPS] for found in own["figures"]])
        spreads += [uses.std(axis=0, ddof=1).max()] if len(own) > 1 else []
        weight = f"{lam:g} (chosen)" if lam == _chosen(of_task) else f"{lam:g}"
        score = f"{own['own task'].mean():.3f} ± {own['own task'].std():.3f}".removesuffix(" ± nan")
        line = [task, weight, score, f"{own['held out'].mean():.3f}", f"{np.mean(changed):.3f}"]
        line += [" · ".join(f"{use:.3f}" for use in of) for of in uses.mean(axis=0)]
        lines.append([*line, f"{own['minutes'].mean():.1f}", f"{len(own)}"])
    header = ("task", "λ", "own task", "held out", "changed", *MAPS, "training, min", "seeds")
    spread = f"Largest standard deviation over seeds: {max(spreads):.3f}."
    return f"{markdown_table(header, lines)}\n\n{spread}"


def _chosen(of_task: pd.DataFrame) -> float:
    """Return the weight that the rows held out choose."""
    accuracy = of_task.groupby("lam")["held out"].mean()
    error = np.sqrt(accuracy[0.0] * (1 - accuracy[0.0]) / of_task["n held out"].iloc[0])
    return float(accuracy.index[accuracy >= accuracy[0.0] - error].max())
