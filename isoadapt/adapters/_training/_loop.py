"""The loop over the epochs of a training, and its callbacks."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from skorch.callbacks import Callback
from torch import Tensor
from tqdm import tqdm

from isoadapt.adapters._training._batches import Batches, Rows
from isoadapt.adapters._training._net import AdapterNet
from isoadapt.adapters._training._selection import Run, Selection


class EpochEvaluator(Callback):
    """Callback that evaluates each epoch of each member on the validation rows.

    `index` (m,), or (K, m), holds the numbers of these rows. With `counts_start`, the initial
    weights are evaluated too, as epoch 0. `epochs` holds the last evaluated epoch of each member.
    """

    def __init__(
        self,
        rows: Rows,
        index: Tensor,
        selections: Sequence[Selection],
        counts_start: bool = True,
    ) -> None:
        self.rows, self.index, self.selections = rows, index, list(selections)
        self.counts_start = counts_start

    @torch.no_grad()
    def evaluate_start(self, net: AdapterNet, batches: Batches, runs: Sequence[Run]) -> None:
        """Evaluate the initial weights and record them as epoch 0."""
        net.penalty.refresh(net.module_.network, batches)
        self.evaluate(net, 0)
        for run, epoch in zip(runs, self.epochs, strict=True):
            run.history.append({"epoch": 0, **epoch.figures()})

    def on_epoch_end(self, net: AdapterNet, **kwargs: Any) -> None:
        """Evaluate the present weights and offer them as candidates."""
        self.evaluate(net, len(net.history))

    @torch.no_grad()
    def evaluate(self, net: AdapterNet, number: int) -> None:
        """Evaluate the present weights as those of epoch `number`; 0 is the start."""
        net._set_training(False)
        penalties, outputs, finite = self._measured(net)
        readings = None if outputs is None else outputs.cpu().numpy()
        self.epochs = [
            selection.consider(
                number,
                float(penalties[member]),
                bool(finite[member]),
                None if readings is None else readings[member],
                partial(net.module_.member_state, member),
            )
            for member, selection in enumerate(self.selections)
        ]

    def _measured(self, net: AdapterNet) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the penalties (K,), the heads' outputs, and whether each member is finite (K,)."""
        module, rows = net.module_, self.rows.take(self.index)
        penalties = net.penalty.on_validation(module.network)
        if penalties is not None:
            weights = [weight.flatten(1).sum(1) for weight in module.network.parameters()]
            finite = torch.stack(weights).sum(0).isfinite()
            return penalties.cpu(), module.linear_outputs(rows.X), finite.cpu()
        adapted, outputs, _ = module(rows.X)
        penalties = net.penalty(adapted, rows.y, module.network)
        finite = adapted.sum(list(range(1, adapted.ndim))).isfinite()
        return penalties.cpu(), outputs, finite.cpu()

    def keep(self, members: Sequence[int]) -> None:
        """Keep only the given members."""
        if self.index.ndim == 2:
            self.index = self.index[members]
        self.selections = [self.selections[member] for member in members]


class LinearSchedule(Callback):
    """Callback that lowers the learning rates linearly from epoch to epoch."""

    def __init__(self, max_epochs: int) -> None:
        self.max_epochs = max_epochs

    def on_epoch_begin(self, net: AdapterNet, **kwargs: Any) -> None:
        """Set this epoch's factor of the rates: 1 in the first epoch, 1/max_epochs in the last."""
        net.optimizer_.factor = 1 - (len(net.history) - 1) / self.max_epochs


class Alternation(Callback):
    """Callback that trains the adapter in odd epochs and the head in even ones."""

    def on_epoch_begin(self, net: AdapterNet, **kwargs: Any) -> None:
        """Choose what this epoch trains."""
        odd = len(net.history) % 2 == 1
        net.module_.train_parts(network=odd, head=not odd)


def epochs_bar(max_epochs: int, verbose: int) -> tqdm:
    """Return a progress bar of epochs, shown only if `verbose` and on a terminal."""
    hidden = not (verbose and sys.stderr.isatty())
    return tqdm(total=max_epochs, desc="epochs", disable=hidden)


@dataclass
class Progress:
    """A training between two epochs: after `epoch`, the members `active` are still trained.

    `net` is not initialised before the first epoch. Without `evaluator` the last epoch is kept.
    """

    net: AdapterNet
    batches: Batches
    runs: Sequence[Run]
    evaluator: EpochEvaluator | None
    active: list[int] = field(default_factory=list)
    epoch: int = 0
    outcomes: dict[int, Any] = field(default_factory=dict)  # of the members that have stopped

    def start(self) -> None:
        """Initialise the network; evaluate the initial weights if the evaluator needs them."""
        self.active = list(range(len(self.runs)))
        self.net.initialize()
        if self.evaluator is not None and self.evaluator.counts_start:
            with self.net.step_threads(self.batches):
                self.evaluator.evaluate_start(self.net, self.batches, self.runs)

    def remove(self, stopped: Sequence[int]) -> None:
        """Remove the members in the given places."""
        left = [place for place in range(len(self.active)) if place not in stopped]
        self.active = [self.active[place] for place in left]
        if self.active and stopped:
            for part in (self.net, self.batches, self.evaluator):
                if part is not None:
                    part.keep(left)


def run_epochs(
    progress: Progress,
    max_epochs: int,
    *,
    tick: Callable[[int], Any],
    finish: Callable[[int, int], Any] = lambda member, place: None,
    save: Callable[[], Any] = lambda: None,
) -> None:
    """Run at most `max_epochs` epochs; members that have stopped are removed from the network.

    The runs of `progress` are filled in. `tick` is called after each epoch with the number of
    members that stopped; `finish` is called for each of these with its number and its present place
    in the network, which then holds its weights; `save` is called between two epochs.
    """
    net, runs = progress.net, progress.runs
    if progress.epoch == 0:
        progress.start()
    else:
        tick(len(runs) - len(progress.active))
    with ExitStack() as threads:
        for number in range(progress.epoch + 1, max_epochs + 1):
            active = progress.active
            threads.enter_context(net.step_threads(progress.batches))
            started = time.perf_counter()
            net.fit_loop(progress.batches, epochs=1)
            seconds = (time.perf_counter() - started) / len(active)
            _note_epoch(
                net, [runs[member] for member in active], progress.evaluator, number, seconds
            )
            stopped = [
                place
                for place, member in enumerate(active)
                if number == max_epochs or runs[member].stops(number)
            ]
            for place in stopped:
                chosen = runs[active[place]].choose(number)
                if chosen is not None:
                    net.module_.load_member(place, chosen.state)
                finish(active[place], place)
            progress.remove(stopped)
            progress.epoch = number
            tick(len(stopped))
            if not progress.active:
                return
            save()


def _note_epoch(
    net: AdapterNet,
    runs: Sequence[Run],
    evaluator: EpochEvaluator | None,
    number: int,
    seconds: float,
) -> None:
    """Add an entry to the history of each member."""
    for place, (run, loss) in enumerate(zip(runs, net.epoch_losses.tolist(), strict=True)):
        entry = {"epoch": number, "train_loss": loss}
        if evaluator is not None:
            entry |= evaluator.epochs[place].figures()
        run.history.append(entry | {"dur": seconds})
