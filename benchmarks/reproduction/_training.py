"""Fine-tuning runs of the reproduction, and the saved embeddings of runs without a penalty.

The embeddings are saved in `CACHE`, in one file per run. If the file is
missing, the first adapter that needs it repeats the run.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from benchmarks._commit import commit
from benchmarks._data import Embeddings, read_table
from benchmarks._places import RESULTS
from benchmarks.reproduction._cells import BASE_RUN, JSON, PENALTY, Cell, digest, plain
from benchmarks.reproduction._measuring import (
    Reading,
    embed,
    embedding_figures,
    log_figures,
    prior_rows,
    read,
    task_figures,
    token_figures,
)
from benchmarks.reproduction._recipe import Recipe
from isoadapt import IStarAdapter, LinearHead
from isoadapt._utils.files import atomic_path, writable_folder
from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.encoders._backbone import find_last_linear
from isoadapt.finetune._penalties import PENALTIES

CACHE = RESULTS / "reproduction-cache"
FIGURES = 4  # increased when the figures change, which invalidates earlier records
MAX_LENGTH = 128
SPARSE = 10  # logging steps of runs for which no claim uses the log
# The code that the authors of paper 002 released draws batches at random, takes Σ_S from batches of
# the same size, and does not clip gradients.
ARGUMENTS_AS_RELEASED: Mapping[str, JSON] = {
    "max_grad_norm": 0.0,
    "train_sampling_strategy": "random",
    "per_device_eval_batch_size": 32,
}
# Names of parameters and penalties in the records, since keys depend on them.
RECORDED = {
    "form": "reduction",
    "spectrum-control": "spectrum",
    "topological-entropy": "persistent-entropy",
}


@dataclass(frozen=True)
class Condition:
    """A row of a table: a penalty with its parameters, weight and place."""

    name: str
    penalty: str | None = None
    options: Mapping[str, JSON] = field(default_factory=dict)
    lam: float = 1.0
    where: str | Sequence[int] = "head_input"
    arguments: Mapping[str, JSON] = field(
        default_factory=dict
    )  # of the Trainer, beside the recipe's
    padding: bool = False  # whether padding is among the points

    @property
    def needs_prior(self) -> bool:
        """Whether a claim uses the IsoScore* of its tokens."""
        return self == BASE or self.where != "head_input"


BASE = Condition("base")


@dataclass(frozen=True)
class Job:
    """One fine-tuning run."""

    task: str
    seed: int
    recipe: Recipe
    condition: Condition = BASE

    def settings(self) -> dict[str, JSON]:
        """All settings that affect the result, except task and seed."""
        return {
            **run_settings(self.recipe),
            **penalty_settings(self.condition),
            "figures": FIGURES,
        }

    @property
    def file(self) -> Path:
        """The file with the embeddings of a run without a penalty."""
        return CACHE / f"{self.task}-{self.seed}-{digest(self.settings())}.npz"

    def cell(self) -> Cell:
        """Return the cell of the run."""
        kind = BASE_RUN if self.condition == BASE else PENALTY
        return Cell(kind, self.condition.name, self.task, self.seed, self.settings(), self.run)

    def run(self) -> dict[str, Any]:
        """Fine-tune and return all figures on the whole dev set."""
        return _run(self)


class Task(NamedTuple):
    """The training rows and the whole dev set of a task."""

    train_texts: Sequence[Any]
    train_labels: NDArray[Any]
    dev_texts: Sequence[Any]
    dev_labels: NDArray[Any]


def run_settings(recipe: Recipe) -> dict[str, JSON]:
    """Return the settings that every fine-tuning run depends on; `rows` None is all rows."""
    return {"rows": None, "max_length": MAX_LENGTH, "recipe": recipe.recorded()}


def penalty_settings(condition: Condition) -> dict[str, JSON]:
    """Return all settings of a penalty, including defaults of its loss."""
    ways = {**condition.arguments, **({"padding": True} if condition.padding else {})}
    released: dict[str, JSON] = {"released": ways} if ways else {}
    if condition.penalty is None:
        place: dict[str, JSON] = (
            {} if condition.where == "head_input" else {"where": condition.where}
        )
        return {"penalty": None, **place, **released}
    method = PENALTIES[condition.penalty]
    known = inspect.signature(method.make).parameters
    options = {name: known[name].default for name in method.parameters} | condition.options
    return {
        "penalty": RECORDED.get(condition.penalty, condition.penalty),
        "options": {RECORDED.get(name, name): value for name, value in options.items()},
        "lam": condition.lam,
        "where": condition.where,
        **released,
    }


def adapter_settings(estimator: BaseEstimator) -> dict[str, JSON]:
    """Return all parameters of an adapter, including defaults, also those it had when recorded."""
    former: dict[str, JSON] = {}
    if isinstance(estimator, PenalisedAdapter):
        former["network"] = "linear"
    if isinstance(estimator, IStarAdapter):
        former |= {"solver": "minibatch", "n_shrinkage": 250_000}
    parameters = former | estimator.get_params(deep=False)
    return {"adapter": type(estimator).__name__, "parameters": parameters}


def load_task(name: str) -> Task:
    """Read the training rows and the dev set of a task."""
    return Task(*read_table(name, "train"), *read_table(name, "dev"))


def base_embeddings(job: Job) -> Embeddings:
    """Return the head's input for training rows and dev set, after a run without a penalty."""
    if not job.file.exists():
        job.run()
    with np.load(job.file) as stored:
        labels = stored["y_train"]
        return Embeddings(
            f"{job.task} dev",
            stored["E_train"],
            labels,
            stored["E_dev"],
            stored["y_dev"],
            LinearHead(stored["W"], stored["b"], range(int(labels.max()) + 1)),
        )


def base_commit(job: Job) -> str:
    """Return the commit of the code that computed the saved embeddings."""
    with np.load(job.file) as stored:
        return str(stored["commit"])


def make_penalty(condition: Condition) -> Any:
    """Create the loss of a condition, or return None if it has none."""
    if condition.penalty is None:
        return None
    return PENALTIES[condition.penalty].make(**condition.options)


def _run(job: Job) -> dict[str, Any]:
    from benchmarks.reproduction._fitting import fine_tune

    task, condition = load_task(job.task), job.condition
    logging_steps = 1 if condition.where == "head_input" else SPARSE
    fitted = fine_tune(job, task.train_texts, task.train_labels, logging_steps)
    dev = read(fitted.network, fitted.tokenizer, task.dev_texts, MAX_LENGTH)
    prior = _read_prior(fitted, task, job.seed) if condition.needs_prior else None
    if condition == BASE:
        _keep_embeddings(job.file, task, fitted, dev)
    return plain(
        {
            **task_figures(job.task, task.dev_labels, dev.outputs.numpy()),
            **embedding_figures(dev.embeddings),
            **token_figures(dev, prior),
            **log_figures(fitted.history),
        }
    )


def _read_prior(fitted: Any, task: Task, seed: int) -> Reading:
    """Run the model on the training rows from which Σ_S of the reported IsoScore* is computed."""
    n_layers = fitted.network.config.num_hidden_layers
    rows = prior_rows(fitted.tokenizer, task.train_texts, MAX_LENGTH, n_layers, seed)
    texts = [task.train_texts[i] for i in rows]
    return read(fitted.network, fitted.tokenizer, texts, MAX_LENGTH)


def _keep_embeddings(file: Path, task: Task, fitted: Any, dev: Reading) -> None:
    writable_folder(file.parent)
    head = find_last_linear(fitted.network)
    train, _ = embed(fitted.network, fitted.tokenizer, task.train_texts, MAX_LENGTH)
    with atomic_path(file) as temporary, temporary.open("wb") as opened:
        np.savez(
            opened,
            E_train=train.numpy(),
            y_train=task.train_labels,
            E_dev=dev.embeddings.numpy(),
            y_dev=task.dev_labels,
            W=head.weight.detach().cpu().numpy(),
            b=head.bias.detach().cpu().numpy(),
            commit=commit(),
        )
