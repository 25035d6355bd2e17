"""Training: tasks in, results out.

Tasks with equal numbers of rows become the members of one network. A member that stops leaves it;
the weights of the epoch that its :class:`EpochChoice` keeps are converted into a map of embeddings.
"""

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, groupby
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from skorch.callbacks import LRScheduler
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm

from isoadapt._utils.messages import shows_progress
from isoadapt.adapters._engine._choice import EpochChoice
from isoadapt.adapters._engine._loop import AdapterNet, Alternation, OutputRidge
from isoadapt.adapters._engine._network import AdapterNetwork, MemberAdamW, layer_map
from isoadapt.adapters._engine._task import Task, member_problems
from isoadapt.adapters._maps import Affine
from isoadapt.adapters._rows import Batch, Batches, to_tensor
from isoadapt.heads import LinearHead
from isoadapt.losses import JointLoss


@dataclass(frozen=True, eq=False)
class Result:
    """What a training returns for a task: its epochs with the fitted map and head, or the error."""

    choice: EpochChoice
    ridge: float
    map: Affine | None = None
    head: LinearHead | None = None
    error: ValueError | None = None


def train(tasks: Sequence[Task], tick: Callable[[], Any] = lambda: None) -> list[Result]:
    """Train tasks of equal settings, each with the result that it would have alone."""

    def sizes(number: int) -> tuple[int, int]:
        problem = tasks[number].problem
        return len(problem.fitting), 0 if problem.validating is None else len(problem.validating)

    # Adjacent members with equal rates are stepped together.
    order = sorted(range(len(tasks)), key=lambda number: (sizes(number), tasks[number].rates))
    results: dict[int, Result] = {}
    for _, group in groupby(order, sizes):
        numbers = list(group)
        found = _train_or_fail([tasks[number] for number in numbers], tick)
        results |= dict(zip(numbers, found, strict=True))
    return [results[number] for number in range(len(tasks))]


def _train_or_fail(tasks: Sequence[Task], tick: Callable[[], Any]) -> list[Result]:
    """Train tasks with equal numbers of rows; each alone if a decomposition of one fails."""
    choices = [
        EpochChoice(t.n_epochs, t.patience, t.score, t.weight, copy.deepcopy(t.problem.rng))
        for t in tasks
    ]
    try:
        Training(_make_net(tasks), *_make_batches(tasks), choices).run(tick)
    except torch.linalg.LinAlgError:
        if len(tasks) > 1:
            return [result for task in tasks for result in _train_or_fail([task], tick)]
        return [Result(choices[0], tasks[0].ridge, error=diverged(tasks[0].rates.lr))]
    return [_result(task, choice) for task, choice in zip(tasks, choices, strict=True)]


def _make_batches(tasks: Sequence[Task]) -> tuple[Batches, Tensor | None]:
    """Put the rows on the device; return the batches and the numbers of the validation rows."""
    device, members = tasks[0].device, member_problems(tasks)
    problems = list({id(problem): problem for problem in members}.values())
    starts = np.cumsum([0, *(len(problem.sample.X) for problem in problems)])
    offsets = dict(zip(map(id, problems), starts.tolist(), strict=False))

    def index(parts: Sequence[NDArray[np.int64]]) -> Tensor:
        """Numbers of the members' rows, (K, n), or (n,) if all have the same."""
        places = [offsets[id(each)] + part for each, part in zip(members, parts, strict=True)]
        return torch.from_numpy(np.stack(places) if len(places) > 1 else places[0]).to(device)

    weighted = any(problem.sample.weights is not None for problem in problems)
    X, y, weights = (
        to_tensor(np.concatenate(parts), device) if parts else None
        for parts in (
            [problem.inputs(np.float32) for problem in problems],
            [each.scaled_targets for each in problems if each.scaled_targets is not None],
            [problem.row_weights() for problem in problems] if weighted else [],
        )
    )
    generators = [torch.Generator().manual_seed(problem.seed) for problem in members]
    held = [each.validating for each in members if each.validating is not None]
    fitting = index([problem.fitting for problem in members])
    batches = Batches(Batch(cast(Tensor, X), y, weights), fitting, tasks[0].batch_size, generators)
    return batches, index(held) if held else None


def _make_net(tasks: Sequence[Task]) -> AdapterNet:
    """Join the tasks' layers, heads, losses and learning rates."""
    first, problems = tasks[0], [task.problem for task in tasks]
    heads = [head for problem in problems if (head := problem.inner_head())]
    starts = [problem.coordinates.start for problem in problems]
    network = AdapterNetwork(starts, heads, shifts=first.penalty.shifts).to(first.device)
    network.train_parts(layer=True, head=first.head_training == "joint")
    callbacks: list[Any] = []
    if first.lr_schedule == "linear":
        callbacks.append(LRScheduler(LambdaLR, lr_lambda=lambda n: 1 - n / first.max_epochs))
    if first.head_training == "alternating":
        callbacks.append(Alternation())
    return AdapterNet(
        network,
        JointLoss(
            torch.tensor([task.weight for task in tasks], dtype=torch.float32),
            first.balance,
            torch.tensor([task.smoothing for task in tasks], dtype=torch.float64),
        ),
        [task.penalty for task in tasks],
        OutputRidge.of(tasks, network),
        optimizer=MemberAdamW,
        optimizer__rates=[task.rates for task in tasks],
        lr=1.0,
        callbacks=callbacks,
        device=first.device,
    )


# --- the epochs ----------------------------------------------------------------------------------


@dataclass
class Training:
    """A training of members; `choices` belong to those that are still trained."""

    net: AdapterNet
    batches: Batches
    validation: Tensor | None  # numbers of rows, (m,) or (K, m)
    choices: Sequence[EpochChoice]
    counts_start: bool = True  # whether the initial weights are evaluated, as epoch 0

    def run(self, tick: Callable[[], Any]) -> None:
        """Run epochs until all members have stopped, and call `tick` after each."""
        self.net.initialize()
        self.net.notify("on_train_begin", X=self.batches, y=None)
        with self.net.step_threads(self.batches):
            if self.validation is not None and self.counts_start:
                self._run_epoch(0)
            for number in count(1):
                self._run_epoch(number)
                tick()
                left = [k for k, choice in enumerate(self.choices) if not choice.stops(number)]
                if not left:
                    return
                if len(left) < len(self.choices):
                    self._keep(left)

    def _run_epoch(self, number: int) -> None:
        """Train, except in epoch 0, evaluate, and add an entry to the history of each member."""
        net, started = self.net, time.perf_counter()
        with torch.no_grad():
            net.penalty.refresh(net.module_.layer)
        if number:
            net.fit_loop(self.batches, epochs=1)
        measured = self._evaluate(number)
        entries: list[dict[str, float]] = [{"epoch": number} for _ in measured]
        if number:
            seconds = (time.perf_counter() - started) / len(entries)
            for entry, loss in zip(entries, net.epoch_losses.tolist(), strict=True):
                entry |= {"train_loss": loss, "dur": seconds}
        for choice, entry, figures in zip(self.choices, entries, measured, strict=True):
            choice.history.append(entry | figures)

    def _evaluate(self, number: int) -> list[dict[str, float]]:
        """Offer the weights of an epoch to the choices; return the figures."""
        states = [partial(self.net.module_.member_state, k) for k in range(len(self.choices))]
        if self.validation is None:
            for choice, state in zip(self.choices, states, strict=True):
                choice.keep(number, state)
            return [{} for _ in states]
        penalties, outputs = self.net.evaluate(self.batches.rows.take(self.validation))
        parts = [penalties[:, None]]
        if outputs is not None:
            parts.append(outputs.flatten(1))
        readings = torch.cat(parts, 1).cpu().numpy()  # in one copy: a GPU is waited for once
        return [
            choice.consider(
                number,
                float(row[0]),
                None if outputs is None else row[1:].reshape(outputs.shape[1:]),
                state,
            )
            for choice, row, state in zip(self.choices, readings, states, strict=True)
        ]

    def _keep(self, left: Sequence[int]) -> None:
        """Keep only the members in the given places."""
        self.choices = [self.choices[k] for k in left]
        self.net.keep(left)
        self.batches.keep(left)
        if self.validation is not None and self.validation.ndim == 2:
            self.validation = self.validation[left]


def epochs_bar(max_epochs: int, verbose: int) -> tqdm:
    """Return a progress bar of epochs, shown only if `verbose` and on a terminal."""
    hidden = not shows_progress(verbose)
    return tqdm(total=max_epochs, desc="epochs", disable=hidden)


# --- the kept map --------------------------------------------------------------------------------


def _result(task: Task, choice: EpochChoice) -> Result:
    """Convert the weights of the kept epoch."""
    state, problem = choice.state, task.problem
    kept = next(row for row in choice.history if row["epoch"] == choice.best_epoch)
    finite = all(bool(weights.isfinite().all()) for weights in state.values())
    if not (finite and math.isfinite(kept["train_loss"])):
        return Result(choice, task.ridge, error=diverged(task.rates.lr))
    head = problem.head
    if head is not None and task.head_training != "frozen":
        trained = head._with(state["coef"], state["intercept"][0])
        head = problem.coordinates.outer_head(problem.units.outer_head(trained))
    map_ = problem.coordinates.embedding_map(layer_map(state))
    return Result(choice, task.ridge, map_, head)


def diverged(lr: float) -> ValueError:
    """Make the error for a loss or weights that are not finite."""
    return ValueError(
        f"training diverged with lr={lr}: the loss or the weights are no longer finite; choose a "
        "smaller lr, a smaller weight of the penalty or a smaller ridge, or scale the embeddings"
    )
