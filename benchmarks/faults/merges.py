"""Merges of adapters into a checkpoint that are killed at random moments; prints counts as JSON.

The arguments of `python -m benchmarks.faults.merges` are a folder, the number of kills and a seed.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from itertools import cycle
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from isoadapt import Whitening
from isoadapt.interop import merge_into_checkpoint

WIDTH = 16
SECONDS = 0.4  # after which a merge is killed at the latest; it takes about half as long


def save_checkpoint(folder: Path) -> Path:
    """Write a tiny classifier with random weights."""
    from tokenizers import Tokenizer, models
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    config = BertConfig(
        vocab_size=2,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=WIDTH,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Return the digests of all files below a folder, by relative name."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def kill_merges(place: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill merges into one folder; count how often it is absent or not one of the two results."""
    model, chance = save_checkpoint(place / "model"), random.Random(seed)
    X = np.random.default_rng(seed).normal(size=(100, WIDTH))
    adapters = [Whitening(shrinkage=shrinkage).fit(X) for shrinkage in (0.1, 0.2)]
    whole = [
        contents(merge_into_checkpoint(adapter, model, place / f"whole{i}"))
        for i, adapter in enumerate(adapters)
    ]
    target = place / "parent" / "out"
    target.parent.mkdir()
    merge_into_checkpoint(adapters[0], model, target)
    absent = damaged = 0
    for _ in range(kills):
        pid = os.fork()
        if pid == 0:
            _merge_for_ever(adapters, model, target)
        time.sleep(chance.uniform(0, SECONDS))
        os.kill(pid, signal.SIGKILL)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGKILL:
            raise RuntimeError("a merge failed")
        absent += not target.exists()
        damaged += target.exists() and contents(target) not in whole
    merge_into_checkpoint(adapters[1], model, target, overwrite=True)
    damaged += contents(target) != whole[1]
    leftovers = len(os.listdir(target.parent)) - 1
    return {"kills": kills, "absent": absent, "damaged": damaged, "leftovers": leftovers}


def _merge_for_ever(adapters: list[Whitening], model: Path, target: Path) -> None:
    tqdm.set_lock(RLock())  # its own lock is shared with the parent, and stays locked after a kill
    try:
        for adapter in cycle(adapters):
            merge_into_checkpoint(adapter, model, target, overwrite=True)
    finally:
        os._exit(1)


if __name__ == "__main__":
    print(json.dumps(kill_merges(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
