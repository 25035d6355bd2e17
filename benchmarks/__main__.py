"""`python -m benchmarks`: run the speed benchmarks, each in a process of its own.

With `--write`, what was measured is added to the committed records, of which the section is made.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._markdown import replace_section
from benchmarks._places import FOLDER
from benchmarks._store import CellStore
from benchmarks._versions import versions, written
from benchmarks.speed._harness import (
    Comparison,
    Result,
    from_record,
    names,
    run_apart,
    table,
    to_record,
)

RECORDS = FOLDER / "speed" / "results" / "bench.jsonl"
Record = Mapping[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Run the selected benchmarks and print their table; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names(), metavar="NAME", help=str(names()))
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--quick", action="store_true", help="smaller sizes, fewer repeats")
    either.add_argument("--write", type=Path, help="Markdown file whose section to replace")
    options = parser.parse_args(arguments)
    failed: list[str] = []
    measured: list[Record] = []
    for name in options.only or names():
        print(f"running {name} …", end=" ", file=sys.stderr, flush=True)
        started = time.perf_counter()
        try:
            found = [to_record(result) for result in run_apart(name, options.quick)]
        except Exception:  # continue with the other benchmarks
            traceback.print_exc()
            failed.append(name)
        else:
            measured.append({"benchmark": name, "setting": written(versions()), "results": found})
            if options.write is not None:
                records().add(measured[-1])
        print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    print(table(results(measured)))
    if options.write is not None:
        replace_section(options.write, "bench", text(records().entries()))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def records() -> CellStore:
    """Open the committed records, one for each benchmark."""
    return CellStore(RECORDS, ("benchmark",))


def text(measured: Sequence[Record]) -> str:
    """Return the comparisons that have a target as Markdown, and what they were measured with."""
    aimed = [one for one in results(measured) if isinstance(one, Comparison) and one.target]
    met = f"{sum(one.is_met for one in aimed)} of {len(aimed)} targets are met."
    settings = sorted({record["setting"] for record in measured})
    return f"{table(aimed)}\n\n{met} Measured with {'; '.join(settings)}."


def results(measured: Iterable[Record]) -> list[Result]:
    """Return the results of records in the order of the benchmarks."""
    ordered = sorted(measured, key=lambda record: record["benchmark"])
    return [from_record(result) for record in ordered for result in record["results"]]


if __name__ == "__main__":
    sys.exit(main())
