"""Anonymous memory of this process, sampled while a function runs."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")
_SECONDS = 0.005  # between two samples


def anonymous_bytes() -> int:
    """Return RssAnon: resident memory without the pages of files, such as those of a memmap."""
    found = re.search(r"RssAnon:\s+(\d+) kB", STATUS.read_text("ascii"))
    if found is None:
        raise RuntimeError(f"{STATUS} has no line RssAnon")
    return int(found[1]) * 1024


def peak_of(function: Callable[[], Any]) -> int:
    """Return the largest number of anonymous bytes while the function runs."""
    peak, done = [anonymous_bytes()], threading.Event()

    def watch() -> None:
        while not done.wait(_SECONDS):
            peak.append(max(peak.pop(), anonymous_bytes()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        function()
    finally:
        done.set()
        watcher.join()
    return max(*peak, anonymous_bytes())
