"""The cache under faults: a full disk, suspended processes, renamed folders, other users."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from filelock import _api, _unix

from isoadapt import EmbeddingCache
from isoadapt.encoders._cache import _files
from isoadapt.encoders._cache._keys import Identity
from isoadapt.encoders._cache._store import Store, _with_checksum
from isoadapt.encoders._texts import Texts
from tests.encoders.test_store import fill, keys_of, vectors_of
from tests.interrupts import Interrupt

ROOT = Path(__file__).parents[2]
TEXTS = Texts([f"text {i}" for i in range(20)])
ROWS = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def encode(texts):
    return ROWS[[int(text.split()[1]) for text in texts.first]]


def embed(folder, texts=TEXTS):
    return EmbeddingCache(folder)._embed(texts, lambda: Identity(b"x"), encode, lambda n: None)


# A full disk


FULL = """
import os, subprocess, sys
from isoadapt.encoders._cache._environment import Unusable
from tests.encoders.test_store import LARGE, Store, keys_of, vectors_of

for size in (4, 8, 12, 16, 40, 80, 100, 400):
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", sys.argv[1]]
    subprocess.run(mount, check=True)
    pid = os.fork()
    if pid == 0:
        store = Store(sys.argv[1])
        try:
            for i in range(20):
                keys = keys_of(*range(50 * i, 50 * i + 50))
                store.put(keys, vectors_of(keys), LARGE)
        except Unusable as error:
            os._exit(0 if "No space" in str(error) or "disk is full" in str(error) else 3)
        os._exit(4)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, (size, status)
    subprocess.run(["umount", sys.argv[1]], check=True)
"""


def test_a_full_disk_raises_an_error_and_does_not_end_the_process(tmp_path):
    may_mount = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path]
    if not shutil.which("unshare") or subprocess.run(may_mount, capture_output=True).returncode:
        pytest.skip("needs a small file system, and this process may not mount one")
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", FULL, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


# Folders


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to count open files")
def test_idle_caches_are_closed(tmp_path):
    stores = [Store(tmp_path / str(i)) for i in range(40)]
    for store in stores:
        fill(store, 3)
    entries = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    places = [os.readlink(entry) for entry in entries if entry.is_symlink()]
    assert 0 < len([place for place in places if place.startswith(str(tmp_path))]) <= 3 * 8
    for store in stores:
        assert store.read(keys_of(0, 1, 2))[1].all()


def test_a_renamed_folder_works_under_its_new_name(tmp_path):
    keys = fill(Store(tmp_path / "before"), 10)
    (tmp_path / "before").rename(tmp_path / "after")
    np.testing.assert_array_equal(Store(tmp_path / "after").read(keys)[0], vectors_of(keys))
    assert not Store(tmp_path / "before").read(keys)[1].any()
    assert Store(tmp_path / "after").read(keys)[1].all()


def test_a_lock_that_cannot_be_used_does_not_stop_encoding(tmp_path):
    embed(tmp_path, TEXTS.take(range(5)))
    for lock in (tmp_path / "locks").glob("worker-*.lock"):
        lock.unlink()
    (tmp_path / "locks" / "worker-0.lock").mkdir()
    with pytest.warns(UserWarning, match=r"continues without the cache: .* cannot be used"):
        np.testing.assert_array_equal(embed(tmp_path), ROWS)


@needs_fork
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs two users")
def test_the_members_of_a_group_share_a_cache():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o2770)
        os.chown(folder, 0, 12345)
        for i, user in enumerate((1111, 2222, 1111)):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    os.umask(0o022)
                    os.setgroups([])
                    os.setgid(12345)
                    os.setuid(user)
                    np.testing.assert_array_equal(
                        embed(folder, TEXTS.take(range(5 * i + 5))), ROWS[: 5 * i + 5]
                    )
                    stats = EmbeddingCache(folder).stats()
                    status = int(stats[:2] != (5 * i * (i + 1) // 2, 5 * i + 5))
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# Vectors of a wrong width


@pytest.mark.parametrize("wrong", [[3], [0, 7], range(20)])
@pytest.mark.parametrize("asked", [[3, 0, 7], range(20)])
def test_rows_of_a_wrong_width_are_encoded_again(tmp_path, wrong, asked):
    embed(tmp_path)
    replace_rows(tmp_path, wrong)
    some = TEXTS.take(asked)
    with pytest.warns(UserWarning, match="had a wrong width and were deleted"):
        np.testing.assert_array_equal(embed(tmp_path, some), ROWS[list(asked)])
    misses = EmbeddingCache(tmp_path).stats().misses
    np.testing.assert_array_equal(embed(tmp_path, some), ROWS[list(asked)])
    assert EmbeddingCache(tmp_path).stats().misses == misses
    assert misses == 20 + len({*wrong} & {*asked})


def replace_rows(folder, places):
    """Store vectors of 3 numbers, with the right checksum."""
    from isoadapt.encoders._cache._keys import row_keys

    keys = row_keys(Identity(b"x"), TEXTS)

    def write(transaction, tables):
        for i in places:
            row = _with_checksum(keys[i], np.zeros(3, dtype="<f4").tobytes())
            transaction.put(keys[i], row, db=tables["rows"])

    Store(folder)._environment.run(write, write=True)


# Suspended processes


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(_files, "PATIENCE", 0.3)


def suspended(action):
    """Fork a process that suspends itself in `action`; return its id."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    return pid


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def suspend_self(*args):
    os.kill(os.getpid(), signal.SIGSTOP)


def steps_with_a_kept_lock(folder):
    """Interrupt each step of taking and releasing a lock; return all steps and the faulty ones."""
    lock = _files.lock_in(folder, "write")
    step, kept = 1, []
    while (interrupt := Interrupt(step, (_files, _api, _unix))).reached(
        lambda: _files.while_held(lock, int)
    ):
        interrupt.error = None
        _files.while_held(lock, int)
        with open(lock.lock_file) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                kept.append(step)
        step += 1
    return step, kept


@needs_fork
def test_an_interrupt_at_any_step_keeps_no_later_lock(tmp_path):
    with get_context("fork").Pool(1) as pool:  # interrupts inside filelock have an effect on it
        steps, kept = pool.apply(steps_with_a_kept_lock, [tmp_path])
    assert steps > 50
    assert kept == []


@needs_fork
def test_waiting_for_a_suspended_writer_gives_a_message(tmp_path, impatient):
    store = Store(tmp_path)
    fill(store, 3)
    pid = suspended(lambda: store._environment.run(suspend_self, write=True))
    resume = threading.Timer(1.0, os.kill, (pid, signal.SIGCONT))
    resume.start()
    with pytest.warns(UserWarning, match=r"waiting to write: .*process.* if it is suspended"):
        fill(store, 5)
    resume.join()
    os.waitpid(pid, 0)
    assert store.read(keys_of(*range(5)))[1].all()


@needs_fork
def test_waiting_for_a_suspended_writer_can_be_interrupted(tmp_path, impatient):
    store = Store(tmp_path)
    fill(store, 3)
    pid = suspended(lambda: store._environment.run(suspend_self, write=True))
    fallback = threading.Timer(10.0, os.kill, (pid, signal.SIGKILL))
    fallback.start()
    interrupt = threading.Timer(1.0, signal.raise_signal, (signal.SIGINT,))
    interrupt.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="waiting to write"):
        fill(store, 5)
    assert time.monotonic() - started < 5
    fallback.cancel()
    end(pid)
    fill(store, 5)
    assert store.counts()[2] == 5


@needs_fork
def test_waiting_for_texts_of_a_suspended_process_gives_a_message(tmp_path, impatient):
    def encode_and_stop(texts):
        suspend_self()
        return encode(texts)

    cache = EmbeddingCache(tmp_path)
    arguments = (TEXTS, lambda: Identity(b"x"), encode_and_stop, lambda n: None)
    cache.stats()
    pid = suspended(lambda: cache._embed(*arguments))
    kill = threading.Timer(1.5, os.kill, (pid, signal.SIGKILL))
    kill.start()
    with pytest.warns(UserWarning, match=r"waiting for texts .*process.* if it is suspended"):
        np.testing.assert_array_equal(embed(tmp_path), ROWS)
    kill.join()
    os.waitpid(pid, 0)
