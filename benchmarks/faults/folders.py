"""Writers of one folder that are killed at random moments, and readers; prints counts as JSON.

It is a program of its own, because a process with threads should not be forked. The arguments of
`python -m benchmarks.faults.folders` are a folder, the number of kills, the number of writers, and
"exchange" or "rename" for the way in which folders are replaced.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from isoadapt._utils import folders

KIND = folders.Content("a test folder")
FILES = ("a.txt", "b.txt", "sub/c.txt")


def write(target: Path, value: str) -> None:
    """Replace the folder by one whose files all hold `value` many times."""
    with folders.atomic_folder(target, True, KIND) as folder:
        for name in FILES:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(value * 500)


def write_for_ever(target: Path, errors: Path) -> None:
    """Replace the folder until the process is killed; note errors in a file."""
    for i in range(10**9):
        try:
            write(target, f"{os.getpid()}-{i};")
        except Exception as error:
            with errors.open("a") as file:
                file.write(f"{type(error).__name__}: {error}\n")


def start(target: Path, errors: Path) -> int:
    """Start a writer and return its process id."""
    child = os.fork()
    if child == 0:
        write_for_ever(target, errors)
    return child


def read(target: Path) -> str:
    """Read the files through one handle of the folder, which may be replaced at the same time."""
    folder = os.open(target, os.O_RDONLY)
    try:
        found = set()
        for name in FILES:
            with open(os.open(name, os.O_RDONLY, dir_fd=folder)) as file:
                found.add(file.read())
    except FileNotFoundError:
        return "removed"  # after it was replaced
    finally:
        os.close(folder)
    return "whole" if len(found) == 1 and found != {""} else "mixed"


def stress(target: Path, n_kills: int, n_writers: int) -> dict[str, object]:
    """Read the folder while writers replace it and are killed; count what is found."""
    errors = target.parent.parent / "errors.txt"
    errors.touch()
    write(target, "first;")
    rng = random.Random(0)
    counts = dict.fromkeys(("absent", "whole", "mixed", "removed", "kills"), 0)
    writers = [start(target, errors) for _ in range(n_writers)]
    while counts["kills"] < n_kills:
        end = time.monotonic() + rng.uniform(0, 0.03)
        while time.monotonic() < end:
            try:
                counts[read(target)] += 1
            except FileNotFoundError:
                counts["absent"] += 1
        victim = writers.pop(0)
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        counts["kills"] += 1
        counts["absent"] += not target.exists() and n_writers == 1
        writers.append(start(target, errors))
    for writer in writers:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    leftovers = len(os.listdir(target.parent)) - 1
    write(target, "last;")
    found = sorted(os.listdir(target.parent))
    whole = read(target) == "whole" and not KIND.not_replaceable(target)
    return {
        **counts,
        "leftovers": leftovers,
        "found": found,
        "last": whole,
        "errors": errors.read_text().splitlines(),
    }


if __name__ == "__main__":
    place, kills, writers, way = sys.argv[1:]
    if way == "rename":
        folders.exchange = lambda first, second: False
    parent = Path(place) / "parent"
    parent.mkdir()
    print(json.dumps(stress(parent / "out", int(kills), int(writers))))
