"""Kernels that a training step launches on a GPU: `python -m benchmarks.speed.launches`.

They are counted on a pretended GPU. The host takes 5 to 10 µs for each launch, which limits small
steps. With `--write FILE`, the table replaces the section "launches" of a Markdown file.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from benchmarks._data import narrow_cone
from benchmarks._markdown import markdown_table, replace_section
from isoadapt import (
    CosRegAdapter,
    FlowAdapter,
    IsotropyLayer,
    IStarAdapter,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
)
from isoadapt.adapters._engine._loop import AdapterNet
from tests.pretended_cuda import Record, pretended_cuda

SHORT = {"max_epochs": 1, "validation_fraction": None, "device": "cuda", "random_state": 0}
ADAPTERS = (
    IsotropyLayer,
    IStarAdapter,
    CosRegAdapter,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
    FlowAdapter,
)
HEADER = ("adapter", "kernels in a step", "their launches", "waits and copies in a step")


@contextmanager
def counted_steps(record: Record) -> Iterator[list[Record]]:
    """Collect what each training step does on a pretended GPU."""
    events, step = [], AdapterNet.train_step

    def counted(net: AdapterNet, *args: object, **kwargs: object) -> object:
        before = record.copy()
        found = step(net, *args, **kwargs)
        events.append(record - before)
        return found

    with patch.object(AdapterNet, "train_step", counted):
        yield events


def step_events(kind: type) -> list[Record]:
    """Return what each step of a fit with default parameters does; only the flow has no head."""
    data = narrow_cone(256, 16, seed=0)
    adapter = kind(**SHORT) if kind is FlowAdapter else kind(data.head, **SHORT)
    with pretended_cuda() as record, counted_steps(record) as events:
        adapter.fit(data.X_train, data.y_train)
    return events


def row(kind: type) -> list[str]:
    """Return the row of an adapter: medians over the steps."""
    events = step_events(kind)
    kernels = sorted(each.of("kernel") for each in events)[len(events) // 2]
    others = max(each.of("wait", "to host", "to device") for each in events[1:])
    launches = f"{kernels * 0.005:.1f} to {kernels * 0.01:.1f} ms"
    return [f"`{kind.__name__}`", str(kernels), launches, str(others)]


def main(arguments: list[str] | None = None) -> None:
    """Count, print the table and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.launches")
    parser.add_argument("--write", type=Path, help="Markdown file whose section to replace")
    options = parser.parse_args(arguments)
    found = markdown_table(HEADER, [row(kind) for kind in ADAPTERS])
    print(found)
    if options.write is not None:
        replace_section(options.write, "launches", found)


if __name__ == "__main__":
    main()
