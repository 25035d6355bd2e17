"""Training of several members in one network; an adapter's own fit has a single member."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from isoadapt._utils.devices import to_tensor
from isoadapt.adapters._maps import Floats
from isoadapt.adapters._training._batches import Batches, Rows
from isoadapt.adapters._training._checkpoint import Checkpoint
from isoadapt.adapters._training._loop import (
    Alternation,
    EpochEvaluator,
    LinearSchedule,
    Progress,
    run_epochs,
)
from isoadapt.adapters._training._member import Member, Outcome
from isoadapt.adapters._training._net import AdapterNet, classification_loss, regression_loss
from isoadapt.adapters._training._networks import HeadedNetwork, LinearNetwork, MLPNetwork
from isoadapt.adapters._training._optimizer import MemberAdamW
from isoadapt.adapters._training._ridge import OutputRidge
from isoadapt.adapters._training._selection import Run, Selection
from isoadapt.heads import LinearHead
from isoadapt.losses import JointLoss


class TrainingInterrupted(KeyboardInterrupt):
    """A training was interrupted; `outcomes` has None for each member that was not complete."""

    def __init__(self, outcomes: Sequence[Outcome | None], *reason: Any) -> None:
        super().__init__(*reason)
        self.outcomes = list(outcomes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the outcomes, since an exception is rebuilt from its `args` alone."""
        return type(self), (self.outcomes, *self.args)


def fit_members(
    members: Sequence[Member], tick: Callable[[int], Any], checkpoint: Checkpoint | None = None
) -> list[Outcome]:
    """Train members; those with a second fit are then trained on all rows for as many epochs.

    After each epoch of the first training, `tick` is called with the number of members that
    stopped. If `checkpoint` has a saved state of the same training, the training goes on from it.
    An interrupt raises TrainingInterrupted with the outcomes of the members that are complete.
    """
    first, last = (None if checkpoint is None else checkpoint.stage(number) for number in (1, 2))
    try:
        outcomes = train_members(members, tick, first)
    except TrainingInterrupted as stop:
        again = _second_fits(members, stop.outcomes)
        stop.outcomes = [None if k in again else each for k, each in enumerate(stop.outcomes)]
        raise
    again = _second_fits(members, outcomes)
    if again:
        try:
            second: Sequence[Outcome | None] = train_members(
                [*again.values()], lambda _: None, last
            )
        except TrainingInterrupted as stop:
            stop.outcomes = _with_second(outcomes, again, stop.outcomes)
            raise
        outcomes = cast(list[Outcome], _with_second(outcomes, again, second))
    return outcomes


def _with_second(
    first: Sequence[Outcome], places: Iterable[int], second: Sequence[Outcome | None]
) -> list[Outcome | None]:
    """Replace outcomes by those of the second fits, which keep the run of the first."""
    found: list[Outcome | None] = list(first)
    for place, each in zip(places, second, strict=True):
        found[place] = None if each is None else replace(each, run=first[place].run)
    return found


def _second_fits(
    members: Sequence[Member], outcomes: Sequence[Outcome | None]
) -> dict[int, Member]:
    """Return the second fits, on all rows, of those complete members that have one, by place."""
    return {
        place: replace(
            member.for_problem(member.problem.on_all_rows), n_epochs=outcome.run.best_epoch
        )
        for place, (member, outcome) in enumerate(zip(members, outcomes, strict=True))
        if outcome is not None
        and member.for_problem is not None
        and member.problem.on_all_rows is not None
        and outcome.error is None
    }


def train_members(
    members: Sequence[Member], tick: Callable[[int], Any], checkpoint: Checkpoint | None = None
) -> list[Outcome]:
    """Train members in one network, each with the result that it would have alone.

    All members have equal settings, and equal numbers of training and of validation rows.
    """
    order = sorted(range(len(members)), key=lambda k: members[k].rates)
    members = [members[k] for k in order]
    settings, runs = members[0].settings, [_make_run(member) for member in members]
    table = _RowTable(members, settings.device)
    same_rows = all(member.problem is members[0].problem for member in members)
    streams = members[:1] if same_rows else members
    generators = [torch.Generator().manual_seed(member.problem.seed) for member in members]
    evaluator = None
    selections = [run.selection for run in runs if run.selection is not None]
    if selections:
        validating = [m.problem.validating for m in streams if m.problem.validating is not None]
        evaluator = EpochEvaluator(table.rows, table.index(streams, validating), selections)
    net = _make_net(members, generators, table.device, evaluator)
    batches = Batches(
        table.rows,
        table.index(streams, [member.problem.fitting for member in streams]),
        settings.batch_size,
        generators[: len(streams)],
    )
    fixed: dict[str, Any] = {"rows": table.rows}
    for number, member in enumerate(members):
        fixed |= {f"problem {number}": member.problem, f"score {number}": member.score}
    saved = None if checkpoint is None else checkpoint.load(fixed)
    progress = Progress(net, batches, runs, evaluator) if saved is None else saved

    def finish(member: int, place: int) -> None:
        network = progress.net.module_
        outcome = _outcome(members[member], progress.runs[member], network, place)
        progress.outcomes[order[member]] = outcome

    def save() -> None:
        if checkpoint is not None:
            checkpoint.offer(progress, fixed)

    try:
        run_epochs(progress, settings.max_epochs, tick=tick, finish=finish, save=save)
    except KeyboardInterrupt as stop:
        complete = [progress.outcomes.get(k) for k in range(len(members))]
        raise TrainingInterrupted(complete, *stop.args) from stop
    return [progress.outcomes[k] for k in range(len(members))]


def _make_run(member: Member) -> Run:
    """Set up how the epoch of a member is chosen."""
    problem = member.problem
    if problem.validating is None:
        return Run(None, member.n_epochs)
    rng, patience = copy.deepcopy(problem.rng), member.settings.patience
    return Run(Selection(member.score, member.weight, patience, rng, member.least_error))


class _RowTable:
    """The rows of all problems, concatenated, in their coordinates and on the device."""

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
        y = to_tensor(np.concatenate(targets), device) if targets else None
        weighted = any(problem.weights is not None for problem in problems)
        row_weights = to_tensor(np.concatenate(weights), device) if weighted else None
        self.rows = Rows(to_tensor(np.concatenate(points), device), y, row_weights)

    def index(
        self, members: Sequence[Member], indices: Sequence[NDArray[np.int64]]
    ) -> torch.Tensor:
        """Return the positions of each member's rows, (K, n), or (n,) for a single member."""
        places = [
            self.offsets[id(member.problem)] + rows
            for member, rows in zip(members, indices, strict=True)
        ]
        index = places[0] if len(places) == 1 else np.stack(places)
        return torch.from_numpy(index).to(self.device)


def _make_net(
    members: Sequence[Member],
    generators: Sequence[torch.Generator],
    device: torch.device,
    evaluator: EpochEvaluator | None,
) -> AdapterNet:
    settings = members[0].settings
    coordinates = [member.problem.coordinates for member in members]
    starts = [each.start for each in coordinates]
    if settings.network == "linear":
        network = LinearNetwork(starts)
    else:
        network = MLPNetwork(starts, generators, [each.dead for each in coordinates])
    heads = [
        each.units.head(each.coordinates.inner_head(each.head))
        for each in (member.problem for member in members)
        if each.head is not None
    ]
    penalties = [member.penalty for member in members]
    module = HeadedNetwork(network, heads or None, shifts=penalties[0].depends_on_shifts)
    module.train_parts(network=True, head=settings.head_training == "joint")
    callbacks: list[tuple[str, Any]] = []
    if settings.lr_schedule == "linear":
        callbacks.append(("schedule", LinearSchedule(settings.max_epochs)))
    if settings.head_training == "alternating":
        callbacks.append(("alternation", Alternation()))
    if evaluator is not None:
        callbacks.append(("evaluator", evaluator))
    weights = torch.tensor([member.weight for member in members])
    return AdapterNet(
        module,
        JointLoss(weights, settings.balance, _shared_or_each([m.smoothing for m in members])),
        classification_loss if settings.classifies else regression_loss,
        penalties,
        _make_ridge(members, module.to(device)),
        optimizer=MemberAdamW,
        optimizer__rates=[member.rates for member in members],
        lr=members[0].rates.lr,
        batch_size=settings.batch_size,
        callbacks=callbacks,
        callbacks__train_loss=None,
        callbacks__valid_loss=None,
        callbacks__print_log=None,
        device=device,
        verbose=0,
    )


def _shared_or_each(values: Sequence[float]) -> float | torch.Tensor:
    """Return the value that all members share, or a tensor with one value for each."""
    return values[0] if len(set(values)) == 1 else torch.tensor(values)


def _make_ridge(members: Sequence[Member], module: HeadedNetwork) -> OutputRidge | None:
    """Make the ridge on changes of the heads' outputs; None if no member has one."""
    weights = [member.ridge for member in members]
    if module.coef is None or not any(weights):
        return None
    problems = list({id(member.problem): member.problem for member in members}.values())
    if len(problems) > 1:
        problems = [member.problem for member in members]
    roots = np.stack([problem.shrunk_root for problem in problems])
    means = [problem.coordinates.into(problem.moments.mean.numpy()[None]) for problem in problems]
    classifies = members[0].settings.classifies
    return OutputRidge.of(module, weights, np.stack(means), roots, classifies)


def _outcome(member: Member, run: Run, module: HeadedNetwork, place: int) -> Outcome:
    """Read the fitted map and head from the network."""
    weights = module.member_state(place).values()
    if not (run.kept_loss_is_finite() and all(bool(each.isfinite().all()) for each in weights)):
        return Outcome(run, member.ridge, error=diverged(member.rates.lr))
    problem, coordinates, head = member.problem, member.problem.coordinates, member.problem.head
    if head is not None and member.settings.head_training != "frozen":
        trained = LinearHead(*module.head_arrays(place), head.classes_)
        head = coordinates.outer_head(problem.units.outer_head(trained))
    try:
        return Outcome(run, member.ridge, module.network.map(place, coordinates), head)
    except ValueError as error:
        return Outcome(run, member.ridge, error=error)


def diverged(lr: float) -> ValueError:
    """Make the error for a loss or weights that are not finite."""
    return ValueError(
        f"training diverged with lr={lr}: the loss or the weights are no longer finite; choose a "
        "smaller lr, a smaller weight of the penalty or a smaller ridge, or scale the embeddings"
    )
