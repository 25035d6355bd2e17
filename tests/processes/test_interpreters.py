"""What needs other processes: a new interpreter, killed writers and the workers of a cluster."""

import json
import logging
import os
import subprocess
import sys

import joblib
import numpy as np
import pytest
from sklearn import config_context
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import Pipeline

from isoadapt import AdaptedEncoder, IStarAdapter, TeacherReadout, TransformerEncoder, Whitening
from tests.tiny_models import WORDS, make_model, make_tokenizer, save_pair

pytestmark = pytest.mark.xdist_group("processes")


def run_python(code, cwd):
    """Run code in a new interpreter that imports what this one does; return what it prints."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout


# What the command line loads.


def test_help_loads_nothing_heavy(tmp_path):
    code = (
        "import contextlib, sys, isoadapt.cli\n"
        "for command in ([], ['fit'], ['finetune'], ['audit']):\n"
        "    sys.argv = ['isoadapt', *command, '--help']\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        isoadapt.cli.main()\n"
        "print(sorted(sys.modules))"
    )
    loaded = run_python(code, tmp_path)
    assert loaded.count("Usage: isoadapt") == 4
    assert "'isoadapt.cli'" in loaded
    for module in ("torch", "sklearn", "scipy", "transformers", "zuko", "matplotlib"):
        assert f"'{module}'" not in loaded


@pytest.mark.slow  # compiles all that is imported
def test_without_docstrings_the_way_out_is_named(tmp_path):
    command = [sys.executable, "-OO", "-c", "from isoadapt import IsotropyLayer"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "ImportError" in found.stderr
    assert "use python -O" in found.stderr


# Files and folders whose writer is killed at any step: old, new, or old beside them.


KILLED = """
import json, os, shutil, sys
from pathlib import Path
from isoadapt._utils import files

kind, (place, target) = "file", map(Path, (".", "out"))

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
        if frame.f_code.co_filename != files.__file__:
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

for kind in ("file", "folder"):
    seen, step = set(), 1
    write("old")
    while killed_at(step):
        found = content(target)
        beside = [path for path in place.iterdir() if "-old-" in path.name]
        if found is None:
            assert [content(path) for path in beside] == ["old"], step
        seen.add((found, len(beside)))
        for path in place.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        write("old")
        step += 1
    assert content(target) == "new"
    target.unlink() if kind == "file" else None
    print(json.dumps([sorted(seen, key=str), step]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_kill_at_any_step_loses_nothing(tmp_path):
    found = map(json.loads, run_python(KILLED, tmp_path).splitlines())
    expected = (  # what is in place, and how many old ones are beside it
        [["new", 0], ["old", 0]],
        [["new", 1], ["old", 0], [None, 1]],
    )
    for (seen, steps), wanted in zip(found, expected, strict=True):
        assert seen == wanted
        assert steps > 10


# The package, and saved models, in a new process.


LOADING = """
import sys, isoadapt
print(dir(isoadapt), sorted(sys.modules))
isoadapt.metrics.isoscore, isoadapt.geometry, isoadapt.encoders
from isoadapt import *
print(IsotropyLayer.__name__, load_checkpoint.__name__)
import isoadapt.datasets, isoadapt.report
from isoadapt.finetune import finetune_text_classifier, IsoBNLayer
print(sorted(sys.modules))
isoadapt.cli

import joblib, numpy as np
texts, search, taught, *expected = joblib.load("saved")
found = search.predict(texts), search.decision_function(texts), *taught.transform_predict(texts)
for ours, theirs in zip(found, expected, strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
"""
RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, size=6)) for _ in range(72)]
Y = np.array(["cat" in text or "dog" in text for text in TEXTS]).astype(int)
WEIGHTS, GROUPS = RNG.integers(1, 4, size=72).astype(float), np.arange(72) // 3
FAST = {"max_epochs": 2, "random_state": 0}


@pytest.fixture(scope="module")
def taught(checkpoint, tmp_path_factory):
    """A readout of a teacher whose folder is gone."""
    folder = tmp_path_factory.mktemp("teacher")
    teacher = save_pair(make_model().bert, make_tokenizer(), folder / "model")
    model = AdaptedEncoder(checkpoint, TeacherReadout(ridge=0.01), teacher=teacher).fit(TEXTS)
    teacher.rename(folder / "moved")
    return model


@pytest.fixture(scope="module")
def search(checkpoint, tmp_path_factory):
    """Weights and groups are routed through a cached pipeline with a cached encoder."""
    folder = tmp_path_factory.mktemp("search")
    encoder = TransformerEncoder(checkpoint, cache=str(folder / "cache"))
    with config_context(enable_metadata_routing=True):
        adapter = IStarAdapter(**FAST).set_fit_request(sample_weight=True, groups=True)
        adapter.set_score_request(sample_weight=True)
        steps = [("encoder", encoder), ("adapter", adapter)]
        pipe = Pipeline(steps, memory=str(folder / "memory"))
        search = GridSearchCV(pipe, {"adapter__lam": [-1.0, 1.0]}, cv=GroupKFold(2), n_jobs=2)
        with joblib.parallel_config("threading"):  # processes would take seconds to start
            return search.fit(TEXTS, Y, sample_weight=WEIGHTS, groups=GROUPS)


def test_a_new_process_imports_nothing_heavy_and_predicts_the_same(search, taught, tmp_path):
    expected = search.predict(TEXTS), search.decision_function(TEXTS)
    expected += taught.transform_predict(TEXTS)
    joblib.dump((TEXTS, search, taught, *expected), tmp_path / "saved")
    alone, names, loaded = run_python(LOADING, tmp_path).splitlines()
    assert "'IsotropyLayer'" in alone
    assert "'metrics'" in alone
    for module in ("torch", "sklearn", "numpy"):
        assert f"'{module}'" not in alone
    assert names == "IsotropyLayer load_checkpoint"
    assert "'isoadapt.adapters'" in loaded
    for module in ("transformers", "zuko", "matplotlib", "typer", "accelerate", "datasets"):
        assert f"'{module}'" not in loaded


# Memory.


MEASURE = """
import numpy as np
from isoadapt import TeacherReadout, Whitening
from isoadapt.metrics import isotropy_report

def resident(kind):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(kind))

X = np.load("X.npy", mmap_mode="r")
open("/proc/self/clear_refs", "w").write("5")  # the highest value starts anew
before = resident("VmRSS")
Whitening().fit(X)
isotropy_report(X)
TeacherReadout().fit(X, X[:, :32])
print(resident("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_of_the_process_does_not_grow_with_the_rows(tmp_path):
    """Neither by pages of the file, nor by freed memory that is kept, unseen by tracemalloc."""
    X = np.random.default_rng(0).normal(size=(1_000_000, 64)) * np.linspace(1, 3, 64) + 1
    np.save(tmp_path / "X.npy", X.astype(np.float32))
    assert int(run_python(MEASURE, tmp_path)) < 200  # MB; X has 256


# The workers of a cluster.


@pytest.mark.slow
def test_workers_reduce_and_adapt_their_blocks():
    names = ("dask", "dask.array", "distributed")
    dask, da, distributed = map(pytest.importorskip, names)
    here, options = os.getpid(), {"dashboard_address": None, "silence_logs": logging.CRITICAL}

    def read(number):
        assert os.getpid() != here
        return make(number)

    def make(number):
        return np.random.default_rng(number).normal(size=(1000, 6)) * np.arange(1, 7) + 1e3

    blocks = [da.from_delayed(dask.delayed(read)(i), (1000, 6), float) for i in range(20)]
    rows, whole = da.concatenate(blocks), np.concatenate([*map(make, range(20))])
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster,
        distributed.Client(cluster) as client,
        dask.config.set(scheduler=client),
    ):
        adapted = Whitening().fit(rows).transform(rows).compute()
    np.testing.assert_allclose(adapted, Whitening().fit_transform(whole), rtol=1e-9, atol=1e-10)
