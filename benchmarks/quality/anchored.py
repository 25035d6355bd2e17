"""Repair after fine-tuning against an anchor during it, that of `examples/anchored_finetuning.py`.

The weight of the anchor is the largest of WEIGHTS whose accuracy on a fifth of the training rows,
without which the model is fine-tuned, is at most one standard error below that without an anchor.
"""

import runpy
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from transformers import AutoTokenizer

from benchmarks._data import Floats
from benchmarks._markdown import frame_table
from benchmarks._places import RECORDS_FOLDER, ROOT
from benchmarks._store import CellStore
from benchmarks.quality import Cells, _figures as figures, _texts as texts
from benchmarks.quality._checkpoints import (
    EPOCHS,
    MANY,
    MAX_LENGTH,
    N_TRAINING,
    finetuning_rows,
    training_rows,
)
from benchmarks.quality._encoders import encoder_folder
from isoadapt import LogitPreservingWhitening, TeacherReadout, TransformerEncoder, load_checkpoint

KEY = ("task", "part", "lam", "seed")
TASKS = ("sst2_sentence", MANY, "cola", "mrpc")
WEIGHTS, SEEDS = (0.0, 1.0, 10.0), (0, 1, 2)
CHOICE, WHOLE = "choice of lam", "whole"
RECIPE: dict[str, Any] = {
    "learning_rate": 1e-4,
    "per_device_train_batch_size": 32,
    "warmup_steps": 0.05,
    "train_sampling_strategy": "group_by_length",
    "logging_strategy": "no",
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
}
RAW, OWN, READOUT, MEAN = "raw", "LogitPreservingWhitening", "TeacherReadout", "mean pooling"
SHOWN = ((False, RAW), (False, OWN), (False, READOUT), (True, MEAN), (True, READOUT))
STSB, SEARCH, INDEX = "STS-B", "RTE MRR@10", "teacher's index, MRR@10"


def cells() -> Cells:
    """Yield for each task the cells of the choice of the weight, then the others."""
    for task in TASKS:
        for lam in WEIGHTS:
            yield (task, CHOICE, lam, 0), partial(_choice, task, lam)
        for seed, lam in product(SEEDS, (0.0, chosen(task))):
            yield (task, WHOLE, lam, seed), partial(_whole, task, lam, seed)


def chosen(task: str) -> float:
    """Return the weight that the records of the choice lead to."""
    store = CellStore(RECORDS_FOLDER / "anchored.jsonl", KEY)
    accuracy = {lam: store.cells[task, CHOICE, lam, 0]["accuracy"] for lam in WEIGHTS}
    n_judged = store.cells[task, CHOICE, 0.0, 0]["n_judged"]
    floor = accuracy[0.0] - np.sqrt(accuracy[0.0] * (1 - accuracy[0.0]) / n_judged)
    return max(lam for lam in WEIGHTS if accuracy[lam] >= floor)


def _rows(task: str) -> tuple[list[Any], list[Any]]:
    return finetuning_rows(task) if task in N_TRAINING else training_rows(task)


def _train(task: str, rows: tuple[list[Any], list[Any]], lam: float, seed: int) -> tuple[Any, Any]:
    """Fine-tune the base model on rows and return it with its tokenizer."""
    example = runpy.run_path(str(ROOT / "examples" / "anchored_finetuning.py"))
    base = encoder_folder("minilm")
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    parts = ([text] if isinstance(text, str) else text for text in rows[0])
    tokens = [tokenizer(*part, truncation=True, max_length=128) for part in parts]
    anchor = {"anchor": example["Anchor"](_base(rows[0])), "lam": lam} if lam else {}
    light = {"num_train_epochs": EPOCHS, "learning_rate": 1e-4}  # as in the other tables
    recipe = RECIPE | (
        light if task in N_TRAINING else {"num_train_epochs": 3, "learning_rate": 5e-5}
    )
    return example["finetune"](base, tokens, rows[1], seed=seed, **anchor, **recipe)


def _base(inputs: list[Any]) -> Floats:
    """Return the vectors of the base model."""
    return TransformerEncoder(encoder_folder("minilm"), max_length=MAX_LENGTH).transform(inputs)


def _choice(task: str, lam: float) -> dict[str, Any]:
    inputs, labels = (texts.drawn(part, len(part)) for part in _rows(task))
    n_train = round(0.8 * len(inputs))
    model = _train(task, (inputs[:n_train], labels[:n_train]), lam, seed=0)
    encoder, head = load_checkpoint(model)
    predicted = head.predict(encoder.transform(inputs[n_train:]))
    judged = np.array(labels[n_train:])
    return {"accuracy": float((predicted == judged).mean()), "n_judged": len(judged)}


def _whole(task: str, lam: float, seed: int) -> dict[str, Any]:
    started = time.process_time()
    model = _train(task, _rows(task), lam, seed)
    seconds = time.process_time() - started
    own, test, search = texts.own_texts(task), texts.similarity("test"), texts.entailment_search()
    encoder, head = load_checkpoint(model, pooling="readout", max_length=MAX_LENGTH)
    fit, inputs = encoder.transform(own.fit), encoder.transform(own.inputs)
    pairs = encoder.transform(test.first), encoder.transform(test.second)
    asked, searched = encoder.transform(search.queries), encoder.transform(search.documents)
    indexed, d = _base(search.documents), head.n_features_in_
    is_mean = np.array(["layer6_mean" in name for name in encoder.get_feature_names_out()])
    whitening = LogitPreservingWhitening(head).fit(fit[:, :d])
    readout = TeacherReadout(head).fit(fit, _base(own.fit))
    maps: dict[str, Callable[[Floats], Floats]] = {
        RAW: lambda X: X[:, :d],
        OWN: lambda X: whitening.transform(X[:, :d]),
        READOUT: readout.transform,
        MEAN: lambda X: X[:, is_mean],
    }
    found = {
        name: {
            STSB: figures.similarity(apply(pairs[0]), apply(pairs[1]), test.scores),
            SEARCH: figures.reciprocal_rank(apply(asked), apply(searched), search.relevant, 10),
            INDEX: figures.reciprocal_rank(apply(asked), indexed, search.relevant, 10),
        }
        for name, apply in maps.items()
    }
    predicted = head.predict(inputs[:, :d])
    return {
        "own task": figures.agreement(own.labels, predicted, matthews=task == "cola")[0],
        "figures": {name: {use: pair[0] for use, pair in of.items()} for name, of in found.items()},
        "predicted": predicted.tolist(),
        "seconds": seconds,
    }


def text(frame: pd.DataFrame) -> str:
    """Return the table: means and standard deviations over the seeds."""
    whole = frame[frame["part"].eq(WHOLE)].to_dict("records")
    plain = {(r["task"], r["seed"]): r["predicted"] for r in whole if not r["lam"]}
    rows = [
        {
            "task": record["task"],
            "vectors": f"anchored, λ = {record['lam']:g}, {name}" if record["lam"] else name,
            "own task": record["own task"],
            **uses,
            "changed": np.mean(np.not_equal(record["predicted"], before)),
            "training, min": record["seconds"] / 60,
        }
        for record in whole
        if (before := plain.get((record["task"], record["seed"]))) is not None
        for name, uses in record["figures"].items()
        if (bool(record["lam"]), name) in SHOWN
    ]
    groups = pd.DataFrame(rows).groupby(["task", "vectors"], sort=False)
    shown = groups.mean().map("{:.3f}".format) + groups.std().map(
        lambda sd: "" if np.isnan(sd) else f" ± {sd:.3f}"
    )
    return frame_table(shown.assign(seeds=groups.size()))
