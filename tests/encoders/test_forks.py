"""A process without a network forks while a thread loads, tokenises or computes."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from isoadapt.encoders._locks import _SharedLock

ROOT = Path(__file__).parents[2]

CODE = """
import os, socket, sys, threading, time

def refuse(*args, **options):
    raise RuntimeError("network")

socket.socket.connect = socket.getaddrinfo = refuse
from isoadapt import TransformerEncoder
from isoadapt.encoders import _batching, _models

folder = sys.argv[1]
encoder = TransformerEncoder(folder)
inside = threading.Event()
native = threading.Lock()  # as torch's own locks: a child of a fork never sees it released

def slowly(call):
    def wrapper(*args, **options):
        with native:
            inside.set()
            time.sleep(0.5)
        return call(*args, **options)
    return wrapper

def fork_during(step):
    if step == "load":
        _models._load = slowly(_models._load)
    elif step == "probe":
        _batching._padding_changes_vectors = slowly(_batching._padding_changes_vectors)
    else:
        encoder.transform(["a cat"])
        backbone = _models.loaded_backbone(folder)
        kind = type(backbone.tokenizer if step == "tokenise" else backbone.base)
        kind.__call__ = slowly(kind.__call__)
    thread = threading.Thread(target=encoder.transform, args=[["a cat"]])
    thread.start()
    inside.wait()
    pid = os.fork()
    if pid == 0:
        encoder.transform(["a dog"])
        os._exit(0)
    status = wait(pid)
    thread.join()
    return status

def wait(pid):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "waits forever"

def fork_in_tokenizer():
    encoder.transform(["a cat"])
    kind = type(_models.loaded_backbone(folder).tokenizer)
    call = kind.__call__
    def fork_and_call(*args, **options):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return call(*args, **options)
    kind.__call__ = fork_and_call
    encoder.transform(["a dog"])

# A child of a fork during an import finds half a module, so that all imports come first. Each step
# has a process of its own, in which no model is loaded yet.
encoder.transform(["a cat"])
_models.release()
pid = os.fork()
if pid == 0:
    fork_in_tokenizer()
    os._exit(0)
if wait(pid):
    sys.exit("a tokenizer that forks waits for itself")
for step in ("load", "probe", "tokenise", "compute"):
    pid = os.fork()
    if pid == 0:
        status = fork_during(step)
        if status:
            print(f"the child of {step!r}: {status}", file=sys.stderr, flush=True)
        os._exit(bool(status))
    if os.waitpid(pid, 0)[1]:
        sys.exit(1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_child_can_encode_without_network_whatever_was_going_on_at_the_fork(checkpoint):
    fixed = {"PATH": "", "HF_HUB_OFFLINE": "0"}
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, checkpoint],
        cwd=ROOT,
        env=os.environ | fixed | quiet,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


SEVERAL_THREADS = """
import os, signal, sys
import torch
from isoadapt import TransformerEncoder

torch.set_num_threads(2)
encoder = TransformerEncoder(sys.argv[1])
texts = [f"{i} cats " * 20 for i in range(200)]
expected = encoder.transform(texts)
pid = os.fork()
if pid == 0:
    signal.alarm(30)  # ends a child that hangs
    os._exit(not abs(encoder.transform(texts) - expected).max() < 1e-5)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) or torch.get_num_threads() != 2)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_child_can_encode_after_its_parent_has_used_several_threads(checkpoint):
    command = [sys.executable, "-c", SEVERAL_THREADS, checkpoint]
    done = subprocess.run(command, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0


def test_threads_hold_the_lock_at_once_and_may_hold_it_again_while_a_fork_waits():
    lock, all_hold, order = _SharedLock(), threading.Barrier(3, timeout=30), []

    def compute():
        with lock.hold():
            all_hold.wait()
            while not lock.is_forking:
                time.sleep(0.001)
            with lock.hold():
                order.append("computed")

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    all_hold.wait()
    lock.acquire()
    order.append("forked")
    lock.release()
    for thread in threads:
        thread.join(30)
    assert order == ["computed", "computed", "forked"]


def test_no_thread_gets_the_lock_before_a_fork_that_waits_for_it():
    lock, leave, order = _SharedLock(), threading.Event(), []

    def hold_until_told():
        with lock.hold():
            leave.wait(30)

    def fork():
        lock.acquire()
        order.append("fork")
        lock.release()

    def hold():
        with lock.hold():
            order.append("newcomer")

    threads = [threading.Thread(target=target) for target in (hold_until_told, fork, hold)]
    threads[0].start()
    while not lock.holders:
        time.sleep(0.001)
    threads[1].start()
    while not lock.is_forking:
        time.sleep(0.001)
    threads[2].start()
    threads[2].join(0.2)  # time in which it must not get the lock
    leave.set()
    for thread in threads:
        thread.join(30)
    assert order == ["fork", "newcomer"]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to see threads end")
def test_a_fork_waits_for_a_thread_that_has_ended_in_python_alone():
    lock, leave = _SharedLock(), threading.Event()
    in_the_system = threading.Thread(target=leave.wait, args=[30])
    in_the_system.start()
    lock.threads.add(Mock(native_id=in_the_system.native_id, **{"is_alive.return_value": False}))
    threading.Timer(0.2, leave.set).start()
    lock.acquire()
    lock.release()
    assert leave.is_set()


def test_threads_that_have_ended_are_forgotten():
    lock = _SharedLock()

    def compute():
        with lock.hold():
            pass

    for _ in range(20):
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
    assert len(lock.threads) < 10
