"""`python -m benchmarks`: run every speed benchmark, print a table and save the raw figures."""

import argparse
import importlib
import sys
import time
import traceback
from dataclasses import replace
from keyword import iskeyword
from pathlib import Path

import torch

from benchmarks._markdown import replace_section
from benchmarks._places import FOLDER, RESULTS
from benchmarks._versions import versions
from benchmarks.speed._harness import Result, Skipped, as_result, write_results
from benchmarks.speed._report import speed_markdown, speed_text

NOT_AMONG_THEM = ("gpu",)  # run by a separate command


def main(arguments: list[str] | None = None) -> int:
    """Run the selected benchmarks; return 1 if one of them failed."""
    options = _parser().parse_args(arguments)
    failed: list[str] = []
    results: list[Result] = []
    for name in options.only or names():
        print(f"running {name} …", end=" ", file=sys.stderr, flush=True)
        started = time.perf_counter()
        try:
            results += run_one(name, options.quick)
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


def names() -> list[str]:
    """Names of all benchmarks: the public modules of `benchmarks.speed`."""
    return sorted(
        path.stem.removesuffix("_")
        for path in (FOLDER / "speed").glob("[!_]*.py")
        if path.stem not in NOT_AMONG_THEM
    )


def module_of(name: str) -> str:
    """Return the module name of a benchmark; an underscore is added to keywords of Python."""
    return f"benchmarks.speed.{name}_" if iskeyword(name) else f"benchmarks.speed.{name}"


def run_one(name: str, quick: bool) -> list[Result]:
    """Run one benchmark; the result is a Skipped if a required package is not installed."""
    try:
        module = importlib.import_module(module_of(name))
        return [_with_threads(as_result(found)) for found in module.run(quick)]
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("benchmarks", "isoadapt"):
            raise
        return [Skipped(name, f"{error.name} is not installed")]


def _with_threads(result: Result) -> Result:
    """Add the threads of this process to a result that does not say how many it was limited to."""
    if isinstance(result, Skipped):
        return result
    return replace(result, facts={"threads": torch.get_num_threads(), **result.facts})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer repeats")
    parser.add_argument("--only", nargs="+", choices=names(), metavar="NAME", help=str(names()))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of bench.json")
    parser.add_argument("--write", type=Path, help="Markdown file whose section to replace")
    return parser


if __name__ == "__main__":
    sys.exit(main())
