"""Penalised adapters trained together, as members of one network; a fit is one of one member."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from isoadapt._utils.devices import resolve_device
from isoadapt.adapters._linalg import descending_eigh, oas_shrinkage, shrink
from isoadapt.adapters._maps import Floats, map_rows
from isoadapt.adapters._training._coordinates import Coordinates
from isoadapt.adapters._training._loop import Alternation, Judge, LinearSchedule, train
from isoadapt.adapters._training._net import (
    AdapterNet,
    Batches,
    Rows,
    classification_loss,
    regression_loss,
    to_device,
)
from isoadapt.adapters._training._networks import HeadedNetwork, LinearNetwork, MLPNetwork
from isoadapt.adapters._training._optimizer import MemberAdamW
from isoadapt.adapters._training._ridge import OutputRidge, automatic_ridge
from isoadapt.adapters._training._selection import Run, Selection
from isoadapt.adapters._training._task_score import TargetUnits, make_score
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead
from isoadapt.losses import JointLoss

if TYPE_CHECKING:
    from isoadapt.adapters._penalised import PenalisedAdapter


@dataclass(frozen=True, eq=False)
class Problem:
    """What there is to fit; members that are fitted to the same rows and split share one.

    Attributes
    ----------
    X : ndarray of shape (n_samples, n_features)
        Embeddings.
    y : ndarray of shape (n_samples,) or (n_samples, n_outputs), or None
        Labels or values.
    targets : ndarray or None
        The same as class numbers (n_samples,) or values (n_samples, n_outputs).
    head : LinearHead or None
        What reads the adapted embeddings.
    moments : Moments
        Of the rows that are trained on.
    coordinates : Coordinates
        In which the network is trained, from these moments.
    fitting : ndarray of shape (n_fitting,)
        Numbers of the rows that are trained on.
    validating : ndarray of shape (n_validating,), or None
        Numbers of the rows that choose the epoch, from which nothing else is taken.
    seed : int
        Of the generator that shuffles and draws the start.
    rng : RandomState
        Draws the bootstrap samples; each member has its own copy.
    weights : ndarray of shape (n_samples,) or None
        How often each row counts; None: once.
    kept : ndarray of shape (n_samples,) or None
        Which rows of the input X and y hold; None: all of them.
    weighted : bool
        Whether weights were given, and did not come from repeated rows only.
    """

    X: NDArray[Any]
    y: NDArray[Any] | None
    targets: NDArray[Any] | None
    head: LinearHead | None
    moments: Moments
    coordinates: Coordinates
    fitting: NDArray[np.int64]
    validating: NDArray[np.int64] | None
    seed: int
    rng: np.random.RandomState
    weights: Floats | None = None
    kept: NDArray[np.int64] | None = None
    weighted: bool = False

    @cached_property
    def inputs_root(self) -> Floats:
        """Give a root R of the covariance RRᵀ of what enters the network.

        Of shape (d, d), or the diagonal of a diagonal one, (d,).
        """
        coordinates = self.coordinates
        if coordinates.deviations is not None:
            return np.where(coordinates.dead, 0.0, coordinates.deviations)
        cov = self.moments.mapped(*coordinates.into).covariance().numpy()
        eigenvalues, vectors = descending_eigh(cov)
        return vectors * np.sqrt(eigenvalues)

    @cached_property
    def shrunk_root(self) -> Floats:
        """Give a root of the shrunk covariance of what enters the network, as `inputs_root`."""
        coordinates = self.coordinates
        if coordinates.deviations is not None:
            return np.ones(len(self.moments))
        cov = self.moments.mapped(*coordinates.into).covariance().numpy()
        eigenvalues, vectors = descending_eigh(cov)
        return vectors * np.sqrt(shrink(eigenvalues, oas_shrinkage(self.moments)))

    @cached_property
    def units(self) -> TargetUnits:
        """Give origin and unit of the targets, from the rows that are trained on."""
        weights = None if self.weights is None else self.weights[self.fitting]
        return TargetUnits.of(None if self.targets is None else self.targets[self.fitting], weights)

    def row_weights(self) -> Floats | None:
        """Give the weights of the rows in the task loss, of mean 1 over those trained on."""
        return None if self.weights is None else self.weights / self.weights[self.fitting].mean()

    def by_accuracy(self, scoring: Any) -> bool:
        """Whether a scoring is accuracy."""
        classifies = self.targets is not None and self.targets.ndim == 1
        return classifies and scoring in (None, "accuracy")

    @cached_property
    def automatic_ridge(self) -> float:
        """Estimate how firmly the head's outputs are to be held, from the rows trained on."""
        targets = self.units.targets(self.targets)
        if self.head is None or targets is None:
            return 0.0
        rows = self.X[self.fitting]
        outputs = self.units.head(self.head).outputs(rows)
        weights = self.row_weights()
        return automatic_ridge(
            rows,
            targets[self.fitting],
            outputs,
            self.moments,
            None if weights is None else weights[self.fitting],
        )

    def inputs(self) -> Floats:
        """Give what enters the network, without rounding in directions without variance."""
        points = map_rows(self.coordinates.into, self.X)
        points[np.ix_(self.fitting, self.coordinates.dead)] = 0
        return points


class Member(NamedTuple):
    """An adapter about to be trained.

    Attributes
    ----------
    adapter : PenalisedAdapter
        The adapter.
    problem : Problem
        What it is fitted to.
    run : Run
        What becomes of it.
    """

    adapter: "PenalisedAdapter"
    problem: Problem
    run: Run

    @classmethod
    def of(
        cls, adapter: "PenalisedAdapter", problem: Problem, n_epochs: int | None = None
    ) -> "Member":
        """Set out how the epoch is chosen, or how many there are."""
        if problem.validating is None:
            return cls(adapter, problem, Run(None, n_epochs))
        score = None
        if problem.head is not None and problem.y is not None:
            y = problem.y[problem.validating]
            weights = None if problem.weights is None else problem.weights[problem.validating]
            score = make_score(problem.head, y, adapter.scoring, problem.units, weights)
        rng = copy.deepcopy(problem.rng)
        by_accuracy = problem.by_accuracy(adapter.scoring)
        one_row = 1 / len(problem.validating) if by_accuracy else 0.0
        selection = Selection(score, adapter._penalty_weight(), adapter.patience, rng, one_row)
        return cls(adapter, problem, Run(selection))


class Outcome(NamedTuple):
    """How the fit of one adapter went.

    Attributes
    ----------
    run : Run
        Its epochs and which was kept.
    error : ValueError or None
        Why it failed.
    """

    run: Run
    error: ValueError | None


def fit_together(
    adapters: Sequence["PenalisedAdapter"],
    problems: Sequence[Problem],
    tick: Callable[[int], Any],
) -> list[Outcome]:
    """Choose the epoch of each adapter, then fit some again to all rows, for as many epochs.

    Parameters and returns are those of :func:`train_together`.
    """
    outcomes = train_together(adapters, problems, tick)
    again = [
        place
        for place, (adapter, problem) in enumerate(zip(adapters, problems, strict=True))
        if outcomes[place].error is None and adapter._fits_again(problem)
    ]
    if not again:
        return outcomes
    whole = {id(problems[place]): adapters[place]._all_rows(problems[place]) for place in again}
    found = train_together(
        [adapters[place] for place in again],
        [whole[id(problems[place])] for place in again],
        lambda finished: None,
        [outcomes[place].run.best_epoch for place in again],
    )
    for place, outcome in zip(again, found, strict=True):
        outcomes[place] = outcomes[place]._replace(error=outcome.error)
    return outcomes


def train_together(
    adapters: Sequence["PenalisedAdapter"],
    problems: Sequence[Problem],
    tick: Callable[[int], Any],
    n_epochs: Sequence[int] | None = None,
) -> list[Outcome]:
    """Train adapters that differ in numbers only, as each alone would be trained.

    Parameters
    ----------
    adapters : sequence of PenalisedAdapter
        Of one :meth:`~PenalisedAdapter._kind`.
    problems : sequence of Problem
        What each is fitted to; of equal numbers of rows.
    tick : callable
        Told, after each epoch, how many adapters it has finished.
    n_epochs : sequence of int, default=None
        After how many epochs each one stops, where no rows choose that.

    Returns
    -------
    list of Outcome
        How the fit of each adapter went.
    """
    numbers = [None] * len(adapters) if n_epochs is None else n_epochs
    members = [Member.of(*parts) for parts in zip(adapters, problems, numbers, strict=True)]
    order = sorted(range(len(members)), key=lambda k: adapters[k]._rates())
    members = [members[k] for k in order]
    errors: list[ValueError | None] = [None] * len(members)
    first = members[0].adapter
    table = _Table(members, resolve_device(first.device))
    alike = all(member.problem is members[0].problem for member in members)
    streams = members[:1] if alike else members
    generators = [torch.Generator().manual_seed(member.problem.seed) for member in members]
    judge = None
    selections = [m.run.selection for m in members if m.run.selection is not None]
    if selections:
        validating = [m.problem.validating for m in streams if m.problem.validating is not None]
        judge = Judge(table.rows, table.index(streams, validating), selections)
    net = _make_net(members, generators, table.device, judge)
    batches = Batches(
        table.rows,
        table.index(streams, [member.problem.fitting for member in streams]),
        first.batch_size,
        generators[: len(streams)],
    )

    def finish(member: int, place: int) -> None:
        try:
            _take_over(members[member], net.module_, place)
        except ValueError as error:
            errors[order[member]] = error

    runs = [member.run for member in members]
    train(net, batches, runs, judge, first.max_epochs, tick=tick, finish=finish)
    outcomes = {k: Outcome(run, errors[k]) for k, run in zip(order, runs, strict=True)}
    return [outcomes[k] for k in range(len(members))]


class _Table:
    """The rows of all problems, one below the other, in their coordinates and on the device."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        self.device = device
        self.offsets: dict[int, int] = {}
        points: list[Floats] = []
        targets: list[NDArray[Any]] = []
        weights: list[Floats] = []
        n_rows = 0
        problems = {id(member.problem): member.problem for member in members}.values()
        for problem in problems:
            self.offsets[id(problem)] = n_rows
            n_rows += len(problem.X)
            points.append(problem.inputs().astype(np.float32))
            values = problem.units.targets(problem.targets)
            if values is not None:
                targets.append(values)
            own = problem.row_weights()
            weights.append(np.ones(len(problem.X)) if own is None else own)
        y = to_device(np.concatenate(targets), device) if targets else None
        weighted = any(problem.weights is not None for problem in problems)
        row_weights = to_device(np.concatenate(weights), device) if weighted else None
        self.rows = Rows(to_device(np.concatenate(points), device), y, row_weights)

    def index(
        self, members: Sequence[Member], numbers: Sequence[NDArray[np.int64]]
    ) -> torch.Tensor:
        """Give the places of each member's rows, of shape (n,) for a single one."""
        places = [
            self.offsets[id(member.problem)] + rows
            for member, rows in zip(members, numbers, strict=True)
        ]
        index = places[0] if len(places) == 1 else np.stack(places)
        return torch.from_numpy(index).to(self.device)


def _make_net(
    members: Sequence[Member],
    generators: Sequence[torch.Generator],
    device: torch.device,
    judge: Judge | None,
) -> AdapterNet:
    first = members[0].adapter
    coordinates = [member.problem.coordinates for member in members]
    starts = [each.start for each in coordinates]
    if first.network == "linear":
        network = LinearNetwork(starts)
    else:
        network = MLPNetwork(starts, generators, [each.dead for each in coordinates])
    heads = [
        each.units.head(each.coordinates.inner_head(each.head))
        for each in (member.problem for member in members)
        if each.head is not None
    ]
    penalties = [member.adapter._make_penalty(member.problem, device) for member in members]
    module = HeadedNetwork(network, heads or None, shifts=penalties[0].sees_shifts)
    module.train_parts(network=True, head=first.head_training == "joint")
    callbacks: list[tuple[str, Any]] = []
    if first.lr_schedule == "linear":
        callbacks.append(("schedule", LinearSchedule(first.max_epochs)))
    if first.head_training == "alternating":
        callbacks.append(("alternation", Alternation()))
    if judge is not None:
        callbacks.append(("judge", judge))
    weights = torch.tensor([member.adapter._penalty_weight() for member in members])
    return AdapterNet(
        module,
        JointLoss(weights, first.balance, first.smoothing),
        regression_loss if first._head_kind() == "regressor" else classification_loss,
        penalties,
        _make_ridge(members, module.to(device)),
        optimizer=MemberAdamW,
        optimizer__weight_decay=[member.adapter.weight_decay for member in members],
        lr=[member.adapter._rates()[0] for member in members],
        batch_size=first.batch_size,
        callbacks=callbacks,
        callbacks__train_loss=None,
        callbacks__valid_loss=None,
        callbacks__print_log=None,
        device=device,
        verbose=0,
    )


def _make_ridge(members: Sequence[Member], module: HeadedNetwork) -> OutputRidge | None:
    """Make what holds the outputs of the heads to those at the start; None if nothing does."""
    weights = [member.adapter._ridge_weight(member.problem) for member in members]
    if module.coef is None or not any(weights):
        return None
    problems = list({id(member.problem): member.problem for member in members}.values())
    if len(problems) > 1:
        problems = [member.problem for member in members]
    roots = np.stack([problem.shrunk_root for problem in problems])
    means = [problem.coordinates.into(problem.moments.mean.numpy()[None]) for problem in problems]
    classifies = members[0].adapter._head_kind() == "classifier"
    return OutputRidge.of(module, weights, np.stack(means), roots, classifies)


def _take_over(member: Member, module: HeadedNetwork, place: int) -> None:
    """Give the adapter its fitted attributes."""
    adapter, problem, run = member.adapter, member.problem, member.run
    if any(not bool(value.isfinite().all()) for value in module.member_state(place).values()):
        raise diverged(adapter._rates()[0])
    head, coordinates = problem.head, problem.coordinates
    if head is not None and adapter.head_training != "frozen":
        trained = LinearHead(*module.head_arrays(place), head.classes_)
        head = coordinates.outer_head(problem.units.outer_head(trained))
    adapter._set_fitted(module.network.map(place, coordinates), head)
    adapter.ridge_ = adapter._ridge_weight(problem)
    if run.n_epochs is None:
        adapter.best_epoch_ = run.best_epoch
        adapter.n_iter_ = int(run.history[-1]["epoch"])
        adapter.history_ = run.history


def diverged(lr: float) -> ValueError:
    """Make the error for weights that are not finite.

    Parameters
    ----------
    lr : float
        The learning rate.

    Returns
    -------
    ValueError
        To be raised.
    """
    return ValueError(
        f"training diverged with lr={lr}: weights are no longer finite; choose a "
        "smaller lr, or scale the embeddings"
    )
