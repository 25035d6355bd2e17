"""Training: tasks in, results out.

In the order of this file:

1. :func:`train` puts the rows of tasks on the device, and the tasks as members into one network.
2. :func:`run_epochs` runs the epochs. Members that stop early are removed, each with the weights of
   the epoch that its :class:`EpochChoice` keeps.
3. :func:`_result` converts these weights into a map of embeddings.
"""

import copy
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from isoadapt.adapters._engine._choice import Accuracy, EpochChoice
from isoadapt.adapters._engine._loop import AdapterNet, Alternation, OutputRidge, linear_schedule
from isoadapt.adapters._engine._network import AdapterNetwork, MemberAdamW
from isoadapt.adapters._engine._task import Penalty, Task
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


def train(tasks: Sequence[Task], tick: Callable[[int], Any] = lambda n: None) -> list[Result]:
    """Train tasks of equal settings together, each with the result that it would have alone.

    After each epoch, `tick` is called with the number of tasks that stopped in it.
    """
    # Adjacent members with equal rates are stepped together, those with equal numbers of rows
    # form one network.
    order = sorted(range(len(tasks)), key=lambda number: tasks[number].rates)
    sizes: dict[Hashable, list[int]] = {}
    for number in order:
        fitting, validating = tasks[number].problem.fitting, tasks[number].problem.validating
        size = len(fitting), 0 if validating is None else len(validating)
        sizes.setdefault(size, []).append(number)
    results: dict[int, Result] = {}
    for numbers in sizes.values():
        found = _train_or_fail([tasks[number] for number in numbers], tick)
        results |= dict(zip(numbers, found, strict=True))
    return [results[number] for number in range(len(tasks))]


def _train_or_fail(tasks: Sequence[Task], tick: Callable[[int], Any]) -> list[Result]:
    """Train tasks with equal numbers of rows; each alone if a decomposition of one fails."""
    try:
        return _train_equal(tasks, tick)
    except torch.linalg.LinAlgError:
        if len(tasks) > 1:
            return [result for task in tasks for result in _train_or_fail([task], tick)]
        return [Result(EpochChoice(), tasks[0].ridge, error=diverged(tasks[0].rates.lr))]


def _train_equal(tasks: Sequence[Task], tick: Callable[[int], Any]) -> list[Result]:
    """Train tasks with equal numbers of rows in one network."""
    settings, results = tasks[0].settings, dict[int, Result]()
    training = _make_training(tasks, *_gather_rows(tasks))

    def finish(member: int, place: int) -> None:
        choice, network = training.choices[member], training.net.module_
        results[member] = _result(tasks[member], choice, network, place)

    run_epochs(training, settings.max_epochs, tick=tick, finish=finish)
    return [results[member] for member in range(len(tasks))]


def _gather_rows(tasks: Sequence[Task]) -> tuple[Batch, dict[int, int]]:
    """Put the rows of all problems on the device; return them and each problem's first row."""
    device = tasks[0].settings.device
    distinct = list({id(task.problem): task.problem for task in tasks}.values())
    ends = np.cumsum([len(problem.sample.X) for problem in distinct])
    offsets = {id(p): int(end) - len(p.sample.X) for p, end in zip(distinct, ends, strict=True)}
    points = np.concatenate([problem.inputs().astype(np.float32) for problem in distinct])
    targets = [problem.units.targets(problem.targets) for problem in distinct]
    known = [each for each in targets if each is not None]
    y = to_tensor(np.concatenate(known), device) if known else None
    weights = None
    if any(problem.sample.weights is not None for problem in distinct):
        own = [problem.row_weights() for problem in distinct]
        ones = [np.ones(len(problem.sample.X)) for problem in distinct]
        given = [one if each is None else each for each, one in zip(own, ones, strict=True)]
        weights = to_tensor(np.concatenate(given), device)
    return Batch(to_tensor(points, device), y, weights), offsets


def _make_training(tasks: Sequence[Task], rows: Batch, offsets: Mapping[int, int]) -> "Training":
    """Set up the network, the batches and the choice of the epochs."""
    shared = all(task.problem is tasks[0].problem for task in tasks)
    problems = [task.problem for task in (tasks[:1] if shared else tasks)]
    generators = [torch.Generator().manual_seed(problem.seed) for problem in problems]

    def index(parts: Sequence[NDArray[np.int64]]) -> Tensor:
        """Positions of each member's rows, (K, n), or (n,) if all have the same."""
        places = [offsets[id(p)] + part for p, part in zip(problems, parts, strict=True)]
        return torch.from_numpy(places[0] if shared else np.stack(places)).to(rows.X.device)

    held = [each.validating for each in problems if each.validating is not None]
    fitting = index([each.fitting for each in problems])
    penalties = [task.penalty for task in tasks]
    return Training(
        _make_net(tasks),
        Batches(rows, fitting, tasks[0].settings.batch_size, generators),
        [_make_choice(task) for task in tasks],
        index(held) if held else None,
        penalties,
    )


def _make_choice(task: Task) -> EpochChoice:
    """Set up how the epoch of a task is chosen."""
    problem = task.problem
    if problem.validating is None:
        return EpochChoice(n_epochs=task.n_epochs)
    least_error = 1 / len(problem.validating) if isinstance(task.score, Accuracy) else 0.0
    rng = copy.deepcopy(problem.rng)
    return EpochChoice(task.score, task.weight, task.settings.patience, rng, least_error)


def _make_net(tasks: Sequence[Task]) -> AdapterNet:
    """Join the tasks' layers, heads, losses and learning rates."""
    settings, problems = tasks[0].settings, [task.problem for task in tasks]
    penalty = join(task.penalty for task in tasks)
    network = AdapterNetwork(
        [problem.coordinates.start for problem in problems],
        [
            problem.units.head(problem.coordinates.inner_head(problem.head))
            for problem in problems
            if problem.head is not None
        ],
        shifts=penalty.shifts,
    )
    network.train_parts(layer=True, head=settings.head_training == "joint")
    callbacks: list[Any] = []
    if settings.lr_schedule == "linear":
        callbacks.append(("schedule", linear_schedule(settings.max_epochs)))
    if settings.head_training == "alternating":
        callbacks.append(("alternation", Alternation()))
    return AdapterNet(
        network,
        JointLoss(
            torch.tensor([task.weight for task in tasks]),
            settings.balance,
            torch.tensor([task.smoothing for task in tasks], dtype=torch.float64),
        ),
        penalty,
        OutputRidge.of(tasks, network.to(settings.device)),
        optimizer=MemberAdamW,
        optimizer__rates=[task.rates for task in tasks],
        lr=1.0,
        callbacks=callbacks,
        device=settings.device,
    )


def join(penalties: Any) -> Penalty:
    """Return one penalty for all members."""
    first, *others = penalties
    return first.join(others)


# --- the epochs ----------------------------------------------------------------------------------


@dataclass
class Training:
    """A training between two epochs: after `epoch`, the members `active` are still trained."""

    net: AdapterNet
    batches: Batches
    choices: Sequence[EpochChoice]
    validation: Tensor | None  # numbers of rows, (m,) or (K, m)
    penalties: Sequence[Penalty]  # of the members
    counts_start: bool = True  # whether the initial weights are evaluated, as epoch 0
    active: list[int] = field(default_factory=list)

    def start(self) -> None:
        """Initialise the network, and evaluate its initial weights."""
        self.active = list(range(len(self.choices)))
        self.net.initialize()
        self.net.notify("on_train_begin", X=self.batches, y=None)
        if self.validation is None or not self.counts_start:
            return
        with self.net.step_threads(self.batches):
            with torch.no_grad():
                self.net.penalty.refresh(self.net.module_)
            for choice, figures in zip(self.choices, self.evaluate(0), strict=True):
                choice.history.append({"epoch": 0, **figures})

    def evaluate(self, number: int) -> list[dict[str, float]]:
        """Offer the present weights to the choices as those of an epoch; return the figures."""
        if self.validation is None:
            return [{} for _ in self.active]
        penalties, outputs, finite = self.net.evaluate(self.batches.rows.take(self.validation))
        # One copy, so that a GPU is waited for once.
        parts = [penalties[:, None], finite[:, None]]
        found = torch.cat(parts if outputs is None else [*parts, outputs.flatten(1)], 1)
        readings = found.cpu().numpy()
        return [
            self.choices[member].consider(
                number,
                float(readings[place, 0]),
                bool(readings[place, 1]),
                None if outputs is None else readings[place, 2:].reshape(outputs.shape[1:]),
                partial(self.net.module_.member_state, place),
            )
            for place, member in enumerate(self.active)
        ]

    def remove(self, stopped: Sequence[int]) -> None:
        """Remove the members in the given places."""
        left = [place for place in range(len(self.active)) if place not in stopped]
        self.active = [self.active[place] for place in left]
        if self.active and stopped:
            self.net.keep(left, join(self.penalties[member] for member in self.active))
            self.batches.keep(left)
            if self.validation is not None and self.validation.ndim == 2:
                self.validation = self.validation[left]


def epochs_bar(max_epochs: int, verbose: int) -> tqdm:
    """Return a progress bar of epochs, shown only if `verbose` and on a terminal."""
    hidden = not (verbose and sys.stderr.isatty())
    return tqdm(total=max_epochs, desc="epochs", disable=hidden)


def run_epochs(
    training: Training,
    max_epochs: int,
    *,
    tick: Callable[[int], Any],
    finish: Callable[[int, int], Any] = lambda member, place: None,
) -> None:
    """Run at most `max_epochs` epochs; members that have stopped are removed from the network.

    `tick` is called after each epoch with the number of members that stopped, and `finish` for each
    of these with its number and its present place in the network, which then holds the weights of
    its kept epoch.
    """
    net, choices = training.net, training.choices
    training.start()
    with ExitStack() as threads:
        for number in range(1, max_epochs + 1):
            active = training.active
            threads.enter_context(net.step_threads(training.batches))
            started = time.perf_counter()
            net.fit_loop(training.batches, epochs=1)
            measured = training.evaluate(number)
            seconds = (time.perf_counter() - started) / len(active)
            losses = net.epoch_losses.tolist()
            for member, loss, figures in zip(active, losses, measured, strict=True):
                entry = {"epoch": number, "train_loss": loss, **figures, "dur": seconds}
                choices[member].history.append(entry)
            stopped = [
                place
                for place, member in enumerate(active)
                if number == max_epochs or choices[member].stops(number)
            ]
            for place in stopped:
                state = choices[active[place]].choose(number)
                if state is not None:
                    net.module_.load_member(place, state)
                finish(active[place], place)
            training.remove(stopped)
            tick(len(stopped))
            if not training.active:
                return


# --- the kept map --------------------------------------------------------------------------------


def _result(task: Task, choice: EpochChoice, network: AdapterNetwork, place: int) -> Result:
    """Read the fitted map and head from the network."""
    state = network.member_state(place)
    finite = all(bool(weights.isfinite().all()) for weights in state.values())
    if not (choice.kept_loss_is_finite() and finite):
        return Result(choice, task.ridge, error=diverged(task.rates.lr))
    problem, coordinates, head = task.problem, task.problem.coordinates, task.problem.head
    if head is not None and task.settings.head_training != "frozen":
        trained = head._with(state["coef"], state["intercept"][0])
        head = coordinates.outer_head(problem.units.outer_head(trained))
    return Result(choice, task.ridge, coordinates.embedding_map(network.map(place)), head)


def diverged(lr: float) -> ValueError:
    """Make the error for a loss or weights that are not finite."""
    return ValueError(
        f"training diverged with lr={lr}: the loss or the weights are no longer finite; choose a "
        "smaller lr, a smaller weight of the penalty or a smaller ridge, or scale the embeddings"
    )
