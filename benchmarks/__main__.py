"""`python -m benchmarks`: run every speed benchmark, print a table and save the raw figures.

Each benchmark runs in a process of its own, so that what one leaves in memory and caches does not
change the times of the next.
"""

import argparse
import sys
import time
import traceback
from pathlib import Path

from benchmarks._markdown import replace_section
from benchmarks._places import RESULTS
from benchmarks._versions import versions
from benchmarks.speed._harness import Result, write_results
from benchmarks.speed._report import speed_markdown, speed_text
from benchmarks.speed._running import names, run_apart


def main(arguments: list[str] | None = None) -> int:
    """Run the selected benchmarks; return 1 if one of them failed."""
    options = _parser().parse_args(arguments)
    failed: list[str] = []
    results: list[Result] = []
    for name in options.only or names():
        print(f"running {name} …", end=" ", file=sys.stderr, flush=True)
        started = time.perf_counter()
        try:
            results += run_apart(name, options.quick)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    setting = versions()
    print(" · ".join(f"{key} {value}" for key, value in setting.items() if value is not None))
    print(speed_text(results))
    print(f"raw figures: {write_results(options.out, results, quick=options.quick, failed=failed)}")
    if options.write is not None:
        replace_section(options.write, "bench", speed_markdown(results, setting))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repeats")
    parser.add_argument("--only", nargs="+", choices=names(), metavar="NAME", help=str(names()))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of bench.json")
    parser.add_argument("--write", type=Path, help="Markdown file whose section to replace")
    return parser


if __name__ == "__main__":
    sys.exit(main())
