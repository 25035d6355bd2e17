"""Penalised adapters trained together, as members of one network; a fit is one of one member."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from isoadapt._torch import resolve_device
from isoadapt.adapters._base import own_random_state
from isoadapt.adapters._coordinates import Coordinates
from isoadapt.adapters._linalg import descending_eigh
from isoadapt.adapters._maps import Floats, map_rows
from isoadapt.adapters._minibatch import (
    AdapterNet,
    Batches,
    Rows,
    classification_loss,
    regression_loss,
    to_device,
)
from isoadapt.adapters._network import HeadedNetwork, LinearNetwork, MLPNetwork
from isoadapt.adapters._optimizer import MemberAdamW
from isoadapt.adapters._training import Alternation, Judge, Run, Selection, make_score, train
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead
from isoadapt.losses import JointLoss

if TYPE_CHECKING:
    from isoadapt.adapters._penalised import PenalisedAdapter

_MIN_ROWS = 4  # fewer rows on either side of a split cannot be scored


@dataclass(frozen=True, eq=False)
class Problem:
    """What there is to fit; members that are fitted to the same rows share one.

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
        Of X.
    coordinates : Coordinates
        In which the network is trained.
    """

    X: NDArray[Any]
    y: NDArray[Any] | None
    targets: NDArray[Any] | None
    head: LinearHead | None
    moments: Moments
    coordinates: Coordinates

    @cached_property
    def inputs_spectrum(self) -> tuple[Floats, Floats]:
        """Give eigenvalues and eigenvectors of the covariance of what enters the network."""
        return descending_eigh(self.moments.mapped(*self.coordinates.into).covariance().numpy())


class Member(NamedTuple):
    """An adapter about to be trained.

    Attributes
    ----------
    adapter : PenalisedAdapter
        The adapter.
    problem : Problem
        What it is fitted to.
    seed : int
        Of its generator.
    fitting, validating : ndarray
        Row numbers.
    run : Run
        What becomes of it.
    """

    adapter: "PenalisedAdapter"
    problem: Problem
    seed: int
    fitting: NDArray[np.int64]
    validating: NDArray[np.int64] | None
    run: Run

    @classmethod
    def of(cls, adapter: "PenalisedAdapter", problem: Problem) -> "Member":
        """Draw the seed and the rows that choose the epoch."""
        rng = own_random_state(adapter.random_state)
        seed, n = int(rng.randint(2**31)), len(problem.X)
        if not adapter.validation_fraction:
            return cls(adapter, problem, seed, np.arange(n), None, Run(None))
        stratify = problem.targets if adapter._head_kind() == "classifier" else None
        fitting, validating = _split(n, stratify, adapter.validation_fraction, rng)
        score = None
        if problem.head is not None and problem.y is not None:
            score = make_score(problem.head, problem.y[validating], adapter.scoring)
        selection = Selection(score, adapter._penalty_weight(), adapter.patience, rng)
        return cls(adapter, problem, seed, fitting, validating, Run(selection))


def train_together(
    adapters: Sequence["PenalisedAdapter"],
    problems: Sequence[Problem],
    tick: Callable[[int], Any],
) -> list[ValueError | None]:
    """Fit adapters that differ in numbers only, as each alone would be fitted.

    Parameters
    ----------
    adapters : sequence of PenalisedAdapter
        Of one :meth:`~PenalisedAdapter._kind`.
    problems : sequence of Problem
        What each is fitted to; of equal numbers of rows.
    tick : callable
        Told, after each epoch, how many adapters it has finished.

    Returns
    -------
    list of ValueError or None
        Why a fit failed, for each adapter.
    """
    members = [
        Member.of(adapter, problem) for adapter, problem in zip(adapters, problems, strict=True)
    ]
    order = sorted(range(len(members)), key=lambda k: (adapters[k].lr, adapters[k].weight_decay))
    members = [members[k] for k in order]
    errors: list[ValueError | None] = [None] * len(members)
    first = members[0].adapter
    table = _Table(members, resolve_device(first.device))
    alike = all(_shares_batches(member, members[0]) for member in members)
    streams = members[:1] if alike else members
    generators = [torch.Generator().manual_seed(member.seed) for member in members]
    judge = None
    selections = [m.run.selection for m in members if m.run.selection is not None]
    if selections:
        validating = [m.validating for m in streams if m.validating is not None]
        judge = Judge(table.rows, table.index(streams, validating), selections)
    net = _make_net(members, generators, table.device, judge)
    batches = Batches(
        table.rows,
        table.index(streams, [member.fitting for member in streams]),
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
    return errors


class _Table:
    """The rows of all problems, one below the other, in their coordinates and on the device."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        self.device = device
        self.offsets: dict[int, int] = {}
        points: list[Floats] = []
        targets: list[NDArray[Any]] = []
        n_rows = 0
        for problem in {id(member.problem): member.problem for member in members}.values():
            self.offsets[id(problem)] = n_rows
            n_rows += len(problem.X)
            points.append(map_rows(problem.coordinates.into, problem.X).astype(np.float32))
            if problem.targets is not None:
                targets.append(problem.targets)
        y = to_device(np.concatenate(targets), device) if targets else None
        self.rows = Rows(to_device(np.concatenate(points), device), y)

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


def _shares_batches(member: Member, other: Member) -> bool:
    return (
        member.problem is other.problem
        and member.seed == other.seed
        and np.array_equal(member.fitting, other.fitting)
    )


def _make_net(
    members: Sequence[Member],
    generators: Sequence[torch.Generator],
    device: torch.device,
    judge: Judge | None,
) -> AdapterNet:
    first = members[0].adapter
    starts = [member.problem.coordinates.start for member in members]
    network = LinearNetwork(starts) if first.network == "linear" else MLPNetwork(starts, generators)
    heads = [
        turned(member.problem.head, member.problem.coordinates.out)
        for member in members
        if member.problem.head is not None
    ]
    penalties = [member.adapter._make_penalty(member.problem, device) for member in members]
    module = HeadedNetwork(network, heads or None, shifts=penalties[0].sees_shifts)
    module.train_parts(network=True, head=first.head_training == "joint")
    callbacks: list[tuple[str, Any]] = []
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
        optimizer=MemberAdamW,
        optimizer__weight_decay=[member.adapter.weight_decay for member in members],
        lr=[member.adapter.lr for member in members],
        batch_size=first.batch_size,
        callbacks=callbacks,
        callbacks__train_loss=None,
        callbacks__valid_loss=None,
        callbacks__print_log=None,
        device=device,
        verbose=0,
    )


def _split(
    n: int, targets: NDArray[Any] | None, fraction: float, rng: np.random.RandomState
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and rows to validate on, stratified; too few rows serve as both."""
    rows = np.arange(n)
    n_valid = round(n * fraction)
    if min(n_valid, n - n_valid) < _MIN_ROWS:
        return rows, rows
    stratify = None
    if targets is not None:
        counts = np.bincount(targets)
        counts = counts[counts > 0]
        if counts.min() >= 2 and len(counts) <= min(n_valid, n - n_valid):
            stratify = targets
    fitting, validating = train_test_split(
        rows, test_size=n_valid, stratify=stratify, random_state=rng
    )
    return np.sort(fitting), np.sort(validating)


def turned(head: LinearHead, turn: Floats) -> LinearHead:
    """Give the same head on embeddings that were multiplied by ``turn.T``.

    Parameters
    ----------
    head : LinearHead
        The head.
    turn : ndarray of shape (d, d)
        A rotation.

    Returns
    -------
    LinearHead
        With the coefficients turned.
    """
    return LinearHead(head.coef_ @ turn, head.intercept_, head.classes_)


def _take_over(member: Member, module: HeadedNetwork, place: int) -> None:
    """Give the adapter its fitted attributes."""
    adapter, problem, run = member.adapter, member.problem, member.run
    if any(not bool(value.isfinite().all()) for value in module.member_state(place).values()):
        raise diverged(adapter.lr)
    head, coordinates = problem.head, problem.coordinates
    if head is not None and adapter.head_training != "frozen":
        trained = LinearHead(*module.head_arrays(place), head.classes_)
        head = turned(trained, coordinates.out.T)
    adapter._set_fitted(module.network.map(place, coordinates), head)
    adapter.best_epoch_ = run.best_epoch
    adapter.n_iter_ = len(run.history)
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
