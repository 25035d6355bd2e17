"""`python -m benchmarks`: run the speed benchmarks, each in a process of its own."""

import argparse
import sys
import time
import traceback
from pathlib import Path

from benchmarks._markdown import replace_section
from benchmarks._versions import versions, written
from benchmarks.speed._harness import Result, names, run_apart, table


def main(arguments: list[str] | None = None) -> int:
    """Run the selected benchmarks and print their table; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repeats")
    parser.add_argument("--only", nargs="+", choices=names(), metavar="NAME", help=str(names()))
    parser.add_argument("--write", type=Path, help="Markdown file whose section to replace")
    options = parser.parse_args(arguments)
    failed: list[str] = []
    results: list[Result] = []
    for name in options.only or names():
        print(f"running {name} …", end=" ", file=sys.stderr, flush=True)
        started = time.perf_counter()
        try:
            results += run_apart(name, options.quick)
        except Exception:  # continue with the other benchmarks
            traceback.print_exc()
            failed.append(name)
        print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    text = f"{table(results)}\n\nMeasured with {written(versions())}."
    print(text)
    if options.write is not None:
        replace_section(options.write, "bench", text)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
