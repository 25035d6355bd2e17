"""What `compare_adapters` finds: `python -m benchmarks.quality.comparison`.

Two parts: comparisons on stored embeddings, and repeated comparisons of generated rows with known
effects. Each comparison, or block of trials, is saved when it is done, so that an interrupted run
can be resumed. The result is printed as Markdown; `--write FILE` writes it to a section of that
file. `--report` measures nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks._places import FOLDER
from benchmarks._versions import versions, written
from benchmarks.quality._command import add_write_option, publish, run_resumable
from benchmarks.quality._comparison_blocks import (
    REPETITIONS,
    block_store,
    obtain_trials,
    stored_trials,
)
from benchmarks.quality._comparison_protocol import PROTOCOL_TEXT
from benchmarks.quality._comparison_tasks import (
    CACHE,
    RUNS,
    Key,
    cell_line,
    cell_store,
    measure_task,
    task_data,
)
from benchmarks.quality._comparison_text import (
    Runs,
    Trials,
    changed_line,
    task_checks,
    tasks_text,
    trial_checks,
    trials_text,
)
from benchmarks.quality._comparison_trials import PROTOCOLS, SETTINGS

CELLS = FOLDER / "quality" / "results" / "comparison_{}.jsonl"
TASKS, TRIALS = "tasks", "trials"
EVERY = (TASKS, TRIALS)


def run_tasks(options: argparse.Namespace) -> int:
    """Measure the comparisons on stored embeddings that are missing."""
    cells = cell_store(options.cells, options.fresh)
    for task, adapters in RUNS:
        data = task_data(task)
        key = Key(task, adapters, data.digest())
        if cells.get(key) is None:
            print(f"comparing {adapters} on {task}", file=sys.stderr, flush=True)
            cache = CACHE / key.data if adapters == "all" else None
            cells.add(cell_line(key, measure_task(task, adapters, data, cache)))
    return 0


def run_trials(options: argparse.Namespace) -> int:
    """Run the trials that are missing."""
    blocks = block_store(options.cells, options.fresh)
    for setting in SETTINGS:
        obtain_trials(setting, blocks, options.repetitions)
    return 0


def stored_runs() -> Runs:
    """Read the newest comparison of each task and choice of adapters."""
    found = cell_store(_cells(TASKS)).entries()
    newest = {(compared.task, compared.adapters): compared for compared in found}
    return {run: newest[run] for run in RUNS if run in newest}


def all_trials() -> Trials:
    """Read the stored trials of each setting, by protocol and discordance."""
    blocks = block_store(_cells(TRIALS))
    ordered = sorted(
        SETTINGS, key=lambda each: (PROTOCOLS.index(each.protocol), each.discordance or 0)
    )
    found = {setting: stored_trials(setting, blocks) for setting in ordered}
    return {setting: trials for setting, trials in found.items() if trials}


def comparison_text(runs: Runs, trials: Trials, setting: str) -> str:
    """Return the section: tables, checks and protocol."""
    checks = "\n".join(f"- {line}" for line in (*task_checks(runs), *trial_checks(trials)))
    parts = [
        tasks_text(runs) if runs else "",
        trials_text(trials) if trials else "",
        changed_line(runs) if runs else "",
        "### Checks",
        checks,
        PROTOCOL_TEXT,
        f"Measured with {setting}.",
    ]
    return "\n\n".join(part for part in parts if part)


def _cells(part: str) -> Path:
    return Path(str(CELLS).format(part))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality.comparison")
    parser.add_argument("--parts", nargs="+", choices=EVERY, default=EVERY, metavar="PART")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="of each trial")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--report", action="store_true", help="print stored results alone")
    add_write_option(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, then print and write the section."""
    options = parse(arguments)
    for part, run in ((TASKS, run_tasks), (TRIALS, run_trials)):
        if part in options.parts and not options.report:
            options.cells = _cells(part)
            code = run_resumable(run, options)
            if code:
                return code
    text = comparison_text(stored_runs(), all_trials(), written(versions()))
    publish(text, options.write, "comparison")
    return 0


if __name__ == "__main__":
    sys.exit(main())
