"""The speed benchmarks by name, and how one of them is run."""

import importlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from keyword import iskeyword

import torch

from benchmarks._places import FOLDER
from benchmarks.speed._harness import Result, Skipped, as_result

NOT_AMONG_THEM = ("gpu",)  # run by a separate command


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


def run_apart(name: str, quick: bool) -> list[Result]:
    """Run one benchmark in a new process, in which torch has been imported but not used."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sklearn.model_selection", "isoadapt.adapters"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(run_one, name, quick).result()


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
