"""The cache used by several processes, which are forked, killed or interrupted."""

import os
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from multiprocessing import get_context

import numpy as np
import pytest

from isoadapt import EmbeddingCache
from isoadapt.encoders import _cache as module
from isoadapt.encoders._cache import Request
from isoadapt.encoders._identity import Identity
from isoadapt.encoders._texts import Texts
from tests.encoders.test_store import FILE, has, put, vectors_of

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]
TEXTS = Texts([f"text {i} {'is not short ' * 3}" for i in range(8000)])
PAGE = 16384  # bytes
MAX_SIZE = 5 * 2**20  # smaller than all vectors together, so that rows are evicted too


def in_fork(function, *arguments):
    """Call a function in a forked process and return the exit code: 0 unless it fails."""
    process = get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def rows_of(texts):
    """Compute vectors from texts, so that a wrong one is detected."""
    return vectors_of([text.encode() for text in texts.first], 256)


def embed(folder, texts):
    cache, identity = EmbeddingCache(folder, MAX_SIZE), Identity(b"stand-in")
    return Request(cache, texts, lambda: identity, lambda: rows_of, lambda rows: None).vectors()


def n_wrong(folder, texts):
    return (embed(folder, texts) != rows_of(texts)).any(axis=1).sum()


def sample(rng, most):
    return TEXTS.take(rng.choice(len(TEXTS), size=rng.integers(1, most), replace=False))


def fill_until_killed(folder, seed):
    pid = os.fork()
    if pid:
        return pid
    rng = np.random.default_rng(seed)
    try:
        while True:
            embed(folder, sample(rng, 3000))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, "it ended by itself"


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("error::UserWarning")  # no damage is found
def test_three_processes_of_which_one_is_killed_at_random(tmp_path, rounds, monkeypatch):
    monkeypatch.setattr(module, "_CLAIM_SECONDS", 0.5)
    chance = random.Random(0)
    pids = [fill_until_killed(tmp_path, i) for i in range(2)]
    for i in range(rounds):
        time.sleep(chance.uniform(0, 0.2))
        kill(pids.pop(0))
        assert n_wrong(tmp_path, TEXTS.take(range(i % 17, len(TEXTS), 17))) == 0
        pids.append(fill_until_killed(tmp_path, i + 2))
    for pid in pids:
        kill(pid)
    assert n_wrong(tmp_path, TEXTS) == 0


def interrupt_calls(folder):
    """Interrupt calls at random moments; the next ones must work and not wait for anything."""

    def interrupt(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    sys.unraisablehook = lambda _: None  # an interrupt in a finaliser, which ends nothing
    chance, rng, interrupted = random.Random(0), np.random.default_rng(0), 0
    while interrupted < 40:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 3e-2))
            embed(folder, sample(rng, 60))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
    assert n_wrong(folder, TEXTS.take(range(0, len(TEXTS), 9))) == 0


@pytest.mark.slow
def test_interrupted_calls_leave_nothing_wrong(tmp_path):
    assert in_fork(interrupt_calls, tmp_path) == 0


def damage_at_random(content, chance):
    """Return the content of a file of pages of 16384 bytes damaged in one of many ways."""
    content = bytearray(content)
    page, other = (PAGE * chance.randrange(len(content) // PAGE) for _ in range(2))
    places = {  # of single bytes
        "anywhere": [chance.randrange(len(content)) for _ in range(20)],
        "root": [PAGE * chance.randrange(7) + chance.randrange(152) for _ in range(10)],
    }
    pages = {"zero": bytes(PAGE), "noise": chance.randbytes(PAGE)}
    pages["copied"] = content[other : other + PAGE]
    kind = chance.choice([*places, *pages, "cut"])
    for place in places.get(kind, ()):
        content[place] = chance.randrange(256)
    if kind in pages:
        content[page : page + PAGE] = pages[kind]
    return content[: chance.randrange(len(content))] if kind == "cut" else content


def check_damage(folder, seeds):
    """Damage a file in many ways; check that no wrong row is read and that the cache recovers."""
    warnings.simplefilter("ignore")
    keys = put(EmbeddingCache(folder / "sound"), *range(1000))
    content = (folder / "sound" / FILE).read_bytes()
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir()
        (place / FILE).write_bytes(damage_at_random(content, random.Random(seed)))
        for max_size in (2**30, 2**20):
            cache = EmbeddingCache(place, max_size)
            has(cache, keys)  # what is found must be right
            put(cache, *range(0, 1000, 4))
            cache._claim("owner", keys)
        assert has(cache, put(EmbeddingCache(place), *range(1000)))


@pytest.mark.slow
def test_damage_neither_gives_a_wrong_row_nor_ends_the_process(tmp_path):
    code = in_fork(check_damage, tmp_path, range(60))
    assert code == 0, f"exit code {code} after {sorted(tmp_path.iterdir())}"


def test_a_full_disk_gives_a_warning(tmp_path, monkeypatch):
    """Files may not grow, which is an error of the disk to SQLite."""

    def fill_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, 2**18))
        with pytest.warns(UserWarning, match="continues without the cache .*disk"):
            assert n_wrong(tmp_path, TEXTS) == 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**10, 2**18))
        with pytest.warns(UserWarning, match="continues without the cache .*disk"):
            assert n_wrong(tmp_path / "new", TEXTS.take(range(10))) == 0

    monkeypatch.setattr(module, "_CLAIM_SECONDS", 0.5)
    assert in_fork(fill_disk) == 0
    assert n_wrong(tmp_path, TEXTS) == 0


def test_a_forked_process_can_use_the_cache_of_its_parent(tmp_path):
    embed(tmp_path, TEXTS.take(range(100)))

    def use_in_child():
        assert n_wrong(tmp_path, TEXTS.take(range(50, 200))) == 0

    assert in_fork(use_in_child) == 0
    assert n_wrong(tmp_path, TEXTS.take(range(200))) == 0
    assert EmbeddingCache(tmp_path).stats()[:3] == (250, 200, 200)
