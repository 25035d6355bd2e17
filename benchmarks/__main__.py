"""`python -m benchmarks`: run the speed benchmarks, each in a process of its own.

With `--write`, what was measured is added to the committed records, of which the section is made.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import date
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks._markdown import replace_section
from benchmarks._places import FOLDER
from benchmarks._store import CellStore
from benchmarks._versions import versions, written
from benchmarks.speed._harness import Comparison, apart, names, run_all, run_one, table

RECORDS = FOLDER / "speed" / "results" / "bench.jsonl"


def main(arguments: list[str] | None = None) -> int:
    """Run the selected benchmarks and print their table; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names(), metavar="NAME", help=str(names()))
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--quick", action="store_true", help="smaller sizes, fewer repeats")
    either.add_argument("--write", type=Path, help="Markdown file whose section to replace")
    options = parser.parse_args(arguments)

    def save(name: str, found: list[Comparison]) -> None:
        if options.write is not None:
            results = [asdict(result) for result in found]
            setting = {"day": date.today().isoformat(), "setting": written(versions())}
            records().add({"benchmark": name, **setting, "results": results})
            replace_section(options.write, "bench", text(records().entries()))

    chosen = options.only or names()
    runs = {name: partial(apart, run_one, name, options.quick, models=True) for name in chosen}
    return run_all(runs, save)


def records() -> CellStore:
    """Open the committed records, one for each benchmark."""
    return CellStore(RECORDS, ("benchmark",))


def text(measured: Iterable[Mapping[str, Any]]) -> str:
    """Return the comparisons that have a target as Markdown, and what they were measured with."""
    ordered = sorted(measured, key=itemgetter("benchmark"))
    results = [Comparison(**one) for record in ordered for one in record["results"]]
    aimed = [one for one in results if one.target is not None]
    met = f"{sum(one.is_met for one in aimed)} of {len(aimed)} targets are met."
    settings = sorted({record["setting"] for record in ordered})
    days = groupby(sorted(ordered, key=itemgetter("day")), itemgetter("day"))
    when = "; ".join(f"{day}: {', '.join(one['benchmark'] for one in own)}" for day, own in days)
    return f"{table(aimed)}\n\n{met} Measured with {'; '.join(settings)}, on {when}."


if __name__ == "__main__":
    sys.exit(main())
