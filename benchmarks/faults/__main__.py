"""Counts of faults under concurrent use, kills and interrupts: `python -m benchmarks.faults`.

Each part runs in a process of its own. A table is printed, and the exit status is 1 if any fault
was found. The default numbers take a few minutes on two cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks._markdown import markdown_table
from benchmarks._places import ROOT

COUNTS = {
    "calls": (9950, "calls of one cache, in three threads of each of three processes"),
    "cache-kills": (129, "kills of processes that fill a cache"),
    "cache-interrupts": (1000, "interrupts of calls of a cache"),
    "folder-kills": (928, "kills of processes that replace a folder"),
    "merge-kills": (100, "kills of merges into a checkpoint"),
    "interrupts": (823, "interrupts of fits and searches"),
}


class Line(NamedTuple):
    """A line of the table: what was tried, how many times, and what was wrong how many times."""

    tried: str
    times: int
    faults: dict[str, int]

    def shown(self) -> str:
        """Format the faults."""
        return ", ".join(f"{n} {what}" for what, n in self.faults.items())

    def __str__(self) -> str:
        return f"{self.times} {self.tried}: {self.shown()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and print the table; return 1 if there was a fault."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    for name, (default, meaning) in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{meaning}; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    lines: list[Line] = []
    for part in (_cache, _folders, _merges, _interrupts):
        found = part(options)
        lines += found
        print(*found, sep="\n", file=sys.stderr, flush=True)
    rows = [[line.tried, str(line.times), line.shown()] for line in lines]
    print(markdown_table(["tried", "times", "faults"], rows))
    return int(any(any(line.faults.values()) for line in lines))


def _cache(options: argparse.Namespace) -> list[Line]:
    lines = []
    if options.calls:
        found = _run("cache", "calls", "{}", options.calls, options.seed)
        lines += [
            Line("concurrent calls of a cache", found["calls"], _cache_faults(found)),
            Line("vectors from these calls", found["checked"], {"wrong": found["wrong"]}),
        ]
    if options.cache_kills:
        rounds = max(1, options.cache_kills - 2)  # two processes are killed at the end
        found = _run("cache", "kills", "{}", rounds, options.seed)
        lines += [
            Line("kills of processes that fill a cache", found["kills"], _cache_faults(found)),
            Line("vectors read after these kills", found["checked"], {"wrong": found["wrong"]}),
        ]
    if options.cache_interrupts:
        found = _run("cache", "interrupts", "{}", options.cache_interrupts, options.seed)
        faults = {"locks kept": found["locks"], "wrong vectors": found["wrong"]}
        faults |= _cache_faults(found)
        lines.append(Line("interrupts of calls of a cache", found["interrupts"], faults))
    return lines


def _cache_faults(found: dict[str, Any]) -> dict[str, int]:
    return {"problems in the file": found["problems"], "damaged": int(found["set_aside"])}


def _folders(options: argparse.Namespace) -> list[Line]:
    lines = []
    for writers in (1, 3):
        kills = options.folder_kills // 2
        if not kills:
            continue
        found = _run("folders", "{}", kills, writers, "exchange")
        name = f"a folder that {writers} process{'es' * (writers > 1)} replace{'s' * (writers < 2)}"
        reads = sum(found[kind] for kind in ("whole", "mixed", "removed", "absent"))
        faults = {
            "errors": len(found["errors"]),
            "leftovers": len(found["found"]) - 1,
            "damaged at the end": int(not found["last"]),
        }
        lines += [
            Line(f"kills of writers of {name}", found["kills"], faults),
            Line(f"reads of {name}", reads, {k: found[k] for k in ("absent", "mixed")}),
        ]
    return lines


def _merges(options: argparse.Namespace) -> list[Line]:
    if not options.merge_kills:
        return []
    found = _run("merges", "{}", options.merge_kills, options.seed)
    return [Line("kills of merges into a checkpoint", found.pop("kills"), found)]


def _interrupts(options: argparse.Namespace) -> list[Line]:
    if not options.interrupts:
        return []
    found = _run("interrupts", options.interrupts, options.seed)
    faults = {f"{what} changed": found[what] for what in ("estimators", "settings", "results")}
    return [Line("interrupts of fits and searches", found["interrupts"], faults)]


def _run(module: str, *arguments: object) -> dict[str, Any]:
    """Run a module of this package and return its counts; "{}" stands for an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        given = [folder if argument == "{}" else str(argument) for argument in arguments]
        print(f"running {module} …", file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.faults.{module}", *given],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
