"""How a penalised adapter is fitted, from the rows to the map of the kept epoch.

In the order of this file:

1. :func:`prepare_problem` checks the rows, merges equal ones, splits off the validation rows, fits
   the head and finds the coordinates to train in. The result is a problem.
2. :func:`make_member` adds the penalty, the ridge and the metric of an adapter.
3. :func:`fit_members` trains members together, each with the result that it would have alone. A fit
   is one member, a search are many. Those with few rows are trained a second time, on all rows.
4. :func:`train_members` puts the rows on the device and the members into one network.
5. :func:`run_epochs` runs the epochs and drops members that stop early, each with the weights of
   the epoch that its :class:`Run` chooses.
6. :func:`_outcome` converts these weights into a map of embeddings.
"""

import copy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from tqdm import tqdm

from isoadapt._utils.devices import resolve_device
from isoadapt.adapters._base import make_random_state
from isoadapt.adapters._rows import (
    Batches,
    Index,
    Rows,
    Sample,
    check_frequencies,
    check_spread,
    split_rows,
    strata,
    to_tensor,
)
from isoadapt.adapters._training._epoch_choice import Accuracy, Run, make_score
from isoadapt.adapters._training._loop import AdapterNet, OutputRidge, Training
from isoadapt.adapters._training._networks import (
    HeadedNetwork,
    LinearNetwork,
    MemberAdamW,
    MLPNetwork,
)
from isoadapt.adapters._training._problem import Member, Outcome, Problem
from isoadapt.geometry import Moments
from isoadapt.geometry._chunks import RowSketch
from isoadapt.losses import JointLoss

if TYPE_CHECKING:
    from isoadapt.adapters._penalised import PenalisedAdapter


# --- rows, split, head and coordinates -----------------------------------------------------------


def prepare_problem(
    adapter: "PenalisedAdapter",
    X: ArrayLike,
    y: ArrayLike | None,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Problem:
    """Check, merge and split rows, and compute head and coordinates from the training rows."""
    sample = adapter._check_sample(X, y, sample_weight, groups)
    adapter._check_combination()
    rng = make_random_state(adapter.random_state)
    seed = int(rng.randint(2**31))
    labels = strata(sample.y) if adapter._head_kind() == "classifier" else None
    share = adapter._validation_share()
    fitting, validating = split_rows(len(sample.X), labels, share, rng, sample.groups)
    weighted = sample_weight is not None
    return _make_problem(adapter, sample, fitting, validating, seed, rng, weighted)


def _make_problem(
    adapter: "PenalisedAdapter",
    sample: Sample,
    fitting: Index,
    validating: Index | None,
    seed: int,
    rng: np.random.RandomState,
    weighted: bool,
) -> Problem:
    """Compute the head and the coordinates from the rows with the numbers `fitting`."""
    rows, labels, groups, weights = sample
    if validating is not None:
        rows = rows[fitting]
        labels = None if labels is None else labels[fitting]
        groups = None if groups is None else groups[fitting]
        weights = None if weights is None else weights[fitting]
    check_spread(rows, "rows that are trained on")
    weights = check_frequencies(weights, rows)
    head = adapter._initial_head(rows, labels, weights, groups, weighted)
    moments = Moments().update(rows, weights)
    return Problem(
        X=sample.X,
        y=sample.y,
        targets=None if head is None or sample.y is None else head._targets(sample.y),
        head=head,
        moments=moments,
        coordinates=adapter._make_coordinates(moments, head),
        fitting=fitting,
        validating=validating,
        seed=seed,
        rng=rng,
        weights=sample.weights,
        groups=sample.groups,
        sketch=RowSketch().update(rows),
        weighted=weighted,
    )


# --- members, and their second fits --------------------------------------------------------------


def make_member(
    adapter: "PenalisedAdapter", problem: Problem, n_epochs: int | None = None
) -> Member:
    """Return how an adapter is fitted to a problem; without validation rows, for `n_epochs`."""
    held, score = problem.validating, None
    if held is not None and problem.head is not None and problem.y is not None:
        weights = None if problem.weights is None else problem.weights[held]
        labels = problem.y[held]
        score = make_score(problem.head, labels, adapter.scoring, problem.units, weights)
    device = resolve_device(adapter.device)
    penalty = adapter._make_penalty(problem, device)
    if isinstance(penalty.loss, nn.Module):
        penalty.loss.to(device)
    return Member(
        adapter=adapter,
        problem=problem,
        penalty=penalty,
        ridge=adapter._ridge_weight(problem),
        rates=adapter._rates(problem.coordinates),
        score=score,
        n_epochs=n_epochs,
    )


def fit_members(members: Sequence[Member], tick: Callable[[int], Any]) -> list[Outcome]:
    """Train members; those that need a second fit are then trained on all rows for as many epochs.

    After each epoch of the first training, `tick` is called with the number of members that
    stopped.
    """
    outcomes = train_members(members, tick)
    twice = [k for k, outcome in enumerate(outcomes) if _needs_second_fit(members[k], outcome)]
    again = _second_fits([members[k] for k in twice], [outcomes[k] for k in twice])
    for k, outcome in zip(twice, train_members(again, lambda _: None), strict=True):
        outcomes[k] = replace(outcome, run=outcomes[k].run)
    return outcomes


def _needs_second_fit(member: Member, outcome: Outcome) -> bool:
    problem = member.problem
    held_out = problem.validating is not None and outcome.error is None
    return held_out and member.adapter._fits_twice(problem.X)


def _second_fits(members: Sequence[Member], outcomes: Sequence[Outcome]) -> list[Member]:
    """Return the members' second fits, on all rows, for as many epochs as the first one kept."""
    problems: dict[int, Problem] = {}  # one for all members with the same rows and split
    found = []
    for member, outcome in zip(members, outcomes, strict=True):
        problem, adapter, key = member.problem, member.adapter, id(member.problem)
        if key not in problems:
            sample = Sample(problem.X, problem.y, problem.groups, problem.weights)
            rows = np.arange(len(problem.X))
            problems[key] = _make_problem(
                adapter, sample, rows, None, problem.seed, problem.rng, problem.weighted
            )
        found.append(make_member(adapter, problems[key], outcome.run.best_epoch))
    return found


# --- one training of all members -----------------------------------------------------------------


def train_members(members: Sequence[Member], tick: Callable[[int], Any]) -> list[Outcome]:
    """Train members in one network, and return their outcomes."""
    if not members:
        return []
    # Adjacent members with equal rates are stepped together.
    order = sorted(range(len(members)), key=lambda k: members[k].rates)
    group = [members[k] for k in order]
    device = resolve_device(group[0].adapter.device)
    training = _make_training(group, *_gather_rows([member.problem for member in group], device))
    outcomes: dict[int, Outcome] = {}

    def finish(member: int, place: int) -> None:
        run, module = training.runs[member], training.net.module_
        outcomes[order[member]] = _outcome(group[member], run, module, place)

    run_epochs(training, group[0].adapter.max_epochs, tick=tick, finish=finish)
    return [outcomes[k] for k in range(len(members))]


def _gather_rows(problems: Sequence[Problem], device: torch.device) -> tuple[Rows, dict[int, int]]:
    """Put the rows of all problems on the device; return them and each problem's first row."""
    distinct = list({id(problem): problem for problem in problems}.values())
    ends = np.cumsum([len(problem.X) for problem in distinct])
    offsets = {id(p): int(end) - len(p.X) for p, end in zip(distinct, ends, strict=True)}
    points = np.concatenate([problem.inputs().astype(np.float32) for problem in distinct])
    targets = [problem.units.targets(problem.targets) for problem in distinct]
    known = [each for each in targets if each is not None]
    y = to_tensor(np.concatenate(known), device) if known else None
    weights = None
    if any(problem.weights is not None for problem in distinct):
        own = [problem.row_weights() for problem in distinct]
        ones = [np.ones(len(problem.X)) for problem in distinct]
        given = [one if each is None else each for each, one in zip(own, ones, strict=True)]
        weights = to_tensor(np.concatenate(given), device)
    return Rows(to_tensor(points, device), y, weights), offsets


def _make_training(members: Sequence[Member], rows: Rows, offsets: Mapping[int, int]) -> Training:
    """Set up the network, the batches and the choice of the epochs."""
    shared = all(member.problem is members[0].problem for member in members)
    problems = [member.problem for member in (members[:1] if shared else members)]
    generators = [torch.Generator().manual_seed(member.problem.seed) for member in members]

    def index(parts: Sequence[NDArray[np.int64]]) -> Tensor:
        """Positions of each member's rows, (K, n), or (n,) if all have the same."""
        places = [offsets[id(p)] + part for p, part in zip(problems, parts, strict=True)]
        return torch.from_numpy(places[0] if shared else np.stack(places)).to(rows.X.device)

    held = [each.validating for each in problems if each.validating is not None]
    return Training(
        _make_net(members, generators, rows.X.device),
        Batches(
            rows,
            index([each.fitting for each in problems]),
            members[0].adapter.batch_size,
            generators[: len(problems)],
        ),
        [_make_run(member) for member in members],
        index(held) if held else None,
    )


def _make_run(member: Member) -> Run:
    """Set up how the epoch of a member is chosen."""
    problem, adapter = member.problem, member.adapter
    if problem.validating is None:
        return Run(n_epochs=member.n_epochs)
    least_error = 1 / len(problem.validating) if isinstance(member.score, Accuracy) else 0.0
    rng, weight = copy.deepcopy(problem.rng), adapter._penalty_weight()
    return Run(member.score, weight, adapter.patience, rng, least_error)


def _make_net(
    members: Sequence[Member], generators: Sequence[torch.Generator], device: torch.device
) -> AdapterNet:
    """Join the members' networks, heads, losses and learning rates."""
    adapter, problems = members[0].adapter, [member.problem for member in members]
    starts = [problem.coordinates.start for problem in problems]
    if adapter.network == "linear":
        network = LinearNetwork(starts)
    else:
        network = MLPNetwork(starts, generators, [each.coordinates.dead for each in problems])
    heads = [
        problem.units.head(problem.coordinates.inner_head(problem.head))
        for problem in problems
        if problem.head is not None
    ]
    penalties = [member.penalty for member in members]
    module = HeadedNetwork(network, heads or None, shifts=penalties[0].depends_on_shifts)
    module.train_parts(network=True, head=adapter.head_training == "joint")
    smoothing = [member.adapter.smoothing for member in members]
    weights = torch.tensor([member.adapter._penalty_weight() for member in members])
    same = len(set(smoothing)) == 1
    return AdapterNet(
        module,
        JointLoss(weights, adapter.balance, smoothing[0] if same else torch.tensor(smoothing)),
        penalties,
        OutputRidge.of(members, module.to(device)),
        linear_schedule=adapter.lr_schedule == "linear",
        alternates=adapter.head_training == "alternating",
        max_epochs=adapter.max_epochs,
        optimizer=MemberAdamW,
        optimizer__rates=[member.rates for member in members],
        lr=members[0].rates.lr,
        batch_size=adapter.batch_size,
        device=device,
    )


# --- the epochs ----------------------------------------------------------------------------------


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

    `tick` is called after each epoch with the number of members that stopped; `finish` is called
    for each of these with its number and its present place in the network, which then holds the
    weights of its kept epoch.
    """
    net, runs = training.net, training.runs
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
                runs[member].history.append(entry)
            stopped = [
                place
                for place, member in enumerate(active)
                if number == max_epochs or runs[member].stops(number)
            ]
            for place in stopped:
                state = runs[active[place]].choose(number)
                if state is not None:
                    net.module_.load_member(place, state)
                finish(active[place], place)
            training.remove(stopped)
            tick(len(stopped))
            if not training.active:
                return


# --- the kept map --------------------------------------------------------------------------------


def _outcome(member: Member, run: Run, module: HeadedNetwork, place: int) -> Outcome:
    """Read the fitted map and head from the network."""
    state = module.member_state(place)
    finite = all(bool(weights.isfinite().all()) for weights in state.values())
    if not (run.kept_loss_is_finite() and finite):
        return Outcome(run, member.ridge, error=diverged(member.rates.lr))
    problem, coordinates, head = member.problem, member.problem.coordinates, member.problem.head
    if head is not None and member.adapter.head_training != "frozen":
        trained = head._with(state["coef"], state["intercept"][0])
        head = coordinates.outer_head(problem.units.outer_head(trained))
    map_ = coordinates.embedding_map(module.network.map(place))
    return Outcome(run, member.ridge, map_, head, sketch=problem.sketch)


def diverged(lr: float) -> ValueError:
    """Make the error for a loss or weights that are not finite."""
    return ValueError(
        f"training diverged with lr={lr}: the loss or the weights are no longer finite; choose a "
        "smaller lr, a smaller weight of the penalty or a smaller ridge, or scale the embeddings"
    )
