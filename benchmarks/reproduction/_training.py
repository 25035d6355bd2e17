"""Fine-tunings of the reproduction: each is run once, whatever papers ask for it, and kept.

What is kept lies in `benchmarks/results/reproduction-cache`, a file of figures for each run, and
for runs without a penalty the embeddings too. Delete the folder to run all anew.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from torch import nn

from benchmarks._data import Embeddings, shared_folder
from benchmarks.reproduction._cells import JSON, Cell, Suite, digest, plain
from benchmarks.reproduction._measuring import (
    Reading,
    embedding_figures,
    log_figures,
    read,
    task_figures,
    token_figures,
)
from isoadapt import LinearHead
from isoadapt._files import atomic_path, writable_folder
from isoadapt.datasets import load_hub, load_table, minilm_folder
from isoadapt.encoders._network import find_head
from isoadapt.finetune._penalty import METHODS
from isoadapt.finetune._recipes import RECIPES, Recipe

CACHE = Path(__file__).parents[1] / "results" / "reproduction-cache"
FIGURES = 3  # raised when what is measured changes: what is kept counts no more
MAX_LENGTH = 64
SPARSE = 10  # steps from log to log where no claim rests on the log
# One recipe for all papers where the rows are few, so that they share their base runs. The rate is
# above the papers', at which the small encoder learns less in so few steps.
SMALL = Recipe(lr=1e-4)
EXCEPTIONS: dict[tuple[str, str], dict[str, Any]] = {  # where a task has values of its own
    ("000", "mrpc"): {"lr": 8e-5},
    ("004", "mrpc"): {"epochs": 5},
}


@dataclass(frozen=True)
class Condition:
    """A row of a table: a penalty by name, its parameters, its weight and its place."""

    name: str
    penalty: str | None = None
    options: Mapping[str, JSON] = field(default_factory=dict)
    lam: float = 1.0
    where: str | Sequence[int] = "head_input"


BASE = Condition("base")


@dataclass(frozen=True)
class Job:
    """One fine-tuning; equal settings are the same run."""

    task: str
    seed: int
    rows: int | None
    recipe: Recipe
    condition: Condition = BASE
    model: str | None = None
    from_hub: bool = False

    def settings(self) -> dict[str, JSON]:
        """All that changes the result, but for task and seed."""
        elsewhere = {"model": self.model} if self.model else {}
        if self.from_hub:
            elsewhere["data"] = "hub"
        return {
            **elsewhere,
            "rows": self.rows,
            "max_length": MAX_LENGTH,
            "recipe": asdict(self.recipe),
            **penalty_settings(self.condition),
            "figures": FIGURES,
        }

    def file(self, folder: Path, suffix: str) -> Path:
        """Where the outcome is kept."""
        return folder / f"{self.task}-{self.seed}-{digest(self.settings())}{suffix}"


class Task(NamedTuple):
    """Rows to train on, and the whole dev set."""

    train_texts: Any
    train_labels: NDArray[Any]
    dev_texts: Any
    dev_labels: NDArray[Any]


def penalty_settings(condition: Condition) -> dict[str, JSON]:
    """Return all that a penalty depends on, its loss' own defaults too."""
    if condition.penalty is None:
        return {"penalty": None}
    method = METHODS[condition.penalty]
    known = inspect.signature(method.loss).parameters
    return {
        "penalty": condition.penalty,
        "options": {name: known[name].default for name in method.parameters} | condition.options,
        "lam": condition.lam,
        "where": condition.where,
    }


def adapter_settings(estimator: BaseEstimator) -> dict[str, JSON]:
    """Return all that an adapter depends on, its defaults too."""
    parameters = estimator.get_params(deep=False)
    return {"adapter": type(estimator).__name__, "parameters": parameters}


def load_task(name: str, rows: int | None, from_hub: bool = False) -> Task:
    """Read a task; of its training rows at most so many, drawn once, each class in proportion."""
    if from_hub:
        texts, labels = load_hub(f"glue/{name}")
        dev_texts, dev_labels = load_hub(f"glue/{name}", split="validation")
    else:
        folder = shared_folder() / "data" / name
        texts, labels = load_table(folder / "train.tsv")
        dev_texts, dev_labels = load_table(folder / "dev.tsv")
    if labels is None or dev_labels is None:
        raise ValueError(f"{name} has no labels: a task needs them in training and dev rows")
    if rows is not None and rows < len(texts):
        kept, _ = train_test_split(
            np.arange(len(texts)),
            train_size=rows,
            stratify=None if labels.dtype.kind == "f" else labels,
            random_state=0,
        )
        texts, labels = [texts[i] for i in sorted(kept)], labels[sorted(kept)]
    return Task(texts, labels, dev_texts, dev_labels)


def recipe_for(paper: str, task: str, suite: Suite) -> Recipe:
    """Return the paper's recipe where whole tasks are run, else one for all papers.

    Without the held-out rows of paper 003: what is compared must have seen the same rows.
    """
    if suite.epochs is not None:
        return replace(SMALL, epochs=suite.epochs)
    recipe = replace(RECIPES[paper], validation=0.0)
    return replace(recipe, **EXCEPTIONS.get((paper, task), {}))


def job_for(paper: str, task: str, seed: int, suite: Suite, condition: Condition = BASE) -> Job:
    """Return the run that a paper's row stands for."""
    recipe = recipe_for(paper, task, suite)
    return Job(task, seed, suite.max_rows, recipe, condition, suite.model, suite.from_hub)


def training_cells(
    paper: str, condition: Condition, tasks: Sequence[str], suite: Suite, decides: int
) -> list[Cell]:
    """Return the cells of a row, one for each task and seed."""
    jobs = [
        job_for(paper, task, seed, suite, condition)
        for task in tasks
        for seed in range(suite.seeds)
    ]
    return [
        Cell(
            paper,
            condition.name,
            job.task,
            job.seed,
            job.settings(),
            partial(finetuned, job),
            decides,
            partial(is_kept, job),
        )
        for job in jobs
    ]


def is_kept(job: Job) -> bool:
    """Whether a run need not be run any more."""
    return job.file(CACHE, ".json").exists()


def finetuned(job: Job, folder: Path | None = None) -> dict[str, Any]:
    """Return the figures of a run on the whole dev set; it is run if it is not kept yet."""
    folder = CACHE if folder is None else folder
    kept = job.file(folder, ".json")
    if not kept.exists():
        figures = _run(job, writable_folder(folder))
        with atomic_path(kept) as temporary:
            temporary.write_text(json.dumps(figures, allow_nan=False) + "\n", "utf-8")
    return json.loads(kept.read_text("utf-8"))


def base_settings(task: str, suite: Suite, paper: str = "003") -> dict[str, JSON]:
    """Return what the base run of a paper depends on, but for task and seed."""
    return job_for(paper, task, 0, suite).settings()


def base_embeddings(
    task: str,
    seed: int,
    suite: Suite,
    paper: str = "003",
    folder: Path | None = None,
) -> Embeddings:
    """Return what enters the head after a run without a penalty: training rows and the dev set."""
    job = job_for(paper, task, seed, suite)
    finetuned(job, folder)
    with np.load(job.file(CACHE if folder is None else folder, ".npz")) as stored:
        labels = stored["y_train"]
        classes = None if labels.dtype.kind == "f" else range(int(labels.max()) + 1)
        return Embeddings(
            f"{task} dev",
            stored["E_train"],
            labels,
            stored["E_dev"],
            stored["y_dev"],
            LinearHead(stored["W"], stored["b"], classes),
        )


def make_penalty(condition: Condition) -> Any:
    """Make the loss that a condition names; None without one."""
    if condition.penalty is None:
        return None
    return METHODS[condition.penalty].loss(**condition.options)


def _run(job: Job, folder: Path) -> dict[str, Any]:
    from benchmarks.reproduction._fitting import Place, fit

    task, condition = load_task(job.task, job.rows, job.from_hub), job.condition
    fitted = fit(
        job.model or minilm_folder(),
        task.train_texts,
        task.train_labels,
        job.recipe,
        job.seed,
        MAX_LENGTH,
        Place(make_penalty(condition), condition.lam, condition.where),
        logging_steps=1 if condition.where == "head_input" else SPARSE,
    )
    train, dev = (
        read(fitted.network, fitted.tokenizer, texts, MAX_LENGTH)
        for texts in (task.train_texts, task.dev_texts)
    )
    if condition.penalty is None:
        _keep_embeddings(job.file(folder, ".npz"), task, train, dev, find_head(fitted.network))
    return plain(
        {
            **task_figures(job.task, task.dev_labels, dev.outputs.numpy()),
            **embedding_figures(dev.embeddings),
            **token_figures(dev, train),
            **log_figures(fitted.history),
            "training_seconds": fitted.training_seconds,
            "shrinkage_seconds": fitted.shrinkage_seconds,
        }
    )


def _keep_embeddings(file: Path, task: Task, train: Reading, dev: Reading, head: nn.Linear) -> None:
    with atomic_path(file) as temporary, temporary.open("wb") as opened:
        np.savez(
            opened,
            E_train=train.embeddings.numpy(),
            y_train=task.train_labels,
            E_dev=dev.embeddings.numpy(),
            y_dev=task.dev_labels,
            W=head.weight.detach().cpu().numpy(),
            b=head.bias.detach().cpu().numpy(),
        )
