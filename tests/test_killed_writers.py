"""Files and folders whose writer is killed at any step: old, new, or old beside them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLED = """
import json, os, shutil, sys, warnings
from pathlib import Path
from isoadapt._utils import files

place, kind = Path(sys.argv[1]), sys.argv[2]
target, sources = place / "out", {files.__file__}

def write(text):
    if kind == "file":
        with files.atomic_path(target) as path:
            path.write_text(text)
        return
    files.check_output_folder(target, True)
    with files.atomic_folder(target, True, files.CHECKPOINT) as folder:
        (folder / "a").write_text(text)
        (folder / "b").write_text(text)

def killed_at(step):
    left = [step]
    def trace(frame, event, argument):
        if frame.f_code.co_filename not in sources:
            return None
        left[0] -= event == "line"
        if left[0] == 0:
            os._exit(9)
        return trace
    child = os.fork()
    if child == 0:
        sys.settrace(trace)
        try:
            write("new")
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9

def content(path):
    if kind == "file":
        return path.read_text() if path.exists() else None
    texts = {(path / name).read_text() for name in "ab"} if path.exists() else {None}
    assert len(texts) == 1, texts
    return texts.pop()

def reported():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        files.check_output_folder(target, True)
    return [str(warning.message) for warning in caught]

seen, step = set(), 1
write("old")
while killed_at(step):
    found = content(target)
    beside = [path for path in place.iterdir() if "-old-" in path.name]
    if found is None:
        assert [content(path) for path in beside] == ["old"], step
    assert found in ("old", "new", None)
    messages = reported() if kind == "folder" else []
    assert len(messages) == len(beside) and all(map(str.__contains__, messages, map(str, beside)))
    seen.add((found, len(beside)))
    for path in place.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    write("old")
    step += 1
assert content(target) == "new"
print(json.dumps([sorted(seen, key=str), step]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize(
    ("kind", "expected"),  # what is in place, and how many old ones are beside it
    [
        ("file", [["new", 0], ["old", 0]]),
        ("folder", [["new", 1], ["old", 0], [None, 1]]),
    ],
)
def test_a_kill_at_any_step_loses_nothing(tmp_path, kind, expected):
    completed = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, kind],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    seen, steps = json.loads(completed.stdout)
    assert seen == expected
    assert steps > 10
