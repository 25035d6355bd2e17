"""Vectors of texts from all layers of a checkpoint, by one forward pass, kept in build/."""

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._data import Floats
from benchmarks.quality._checkpoints import FOLDER
from isoadapt._utils.files import atomic_path, writable_folder

HEAD_INPUT, CLS = "head input", "cls"
MAX_LENGTH = 256  # tokens
BATCH_TOKENS = 512  # padding included

Input = str | tuple[str, str]
Vectors = Mapping[str, Floats]


def layer_name(layer: int) -> str:
    """Return the name of the mean-pooled vectors of a layer; 0 is the input of the first layer."""
    return f"mean, layer {layer}"


def cached_vectors(model: Path, name: str, texts: Sequence[Input], pooling: str) -> Floats:
    """Return the vectors (n, d) of the texts from a file, after encoding them if it is missing.

    `name` identifies the checkpoint and must change with its weights. A file holds all poolings.
    """
    distinct = sorted(set(texts))
    digest = hashlib.sha256(json.dumps([name, MAX_LENGTH, *distinct]).encode()).hexdigest()[:20]
    file = FOLDER / "vectors" / f"{digest}.npz"
    if not file.exists():
        begun = time.perf_counter()
        vectors = layer_vectors(model, distinct)
        seconds = time.perf_counter() - begun
        print(f"{name}: {len(distinct)} texts in {seconds:.0f} s", file=sys.stderr, flush=True)
        writable_folder(file.parent)
        with atomic_path(file) as temporary, temporary.open("wb") as handle:
            np.savez(handle, **vectors)
    with np.load(file) as stored:
        number = {text: row for row, text in enumerate(distinct)}
        rows = [number[text] for text in texts]
        return stored[pooling][rows]


@torch.inference_mode()
def layer_vectors(model: Path, texts: Sequence[Input]) -> Vectors:
    """Embed texts or pairs of texts by the model of a folder, which must be a BERT.

    The head input is the output of the pooler, as for a classifier in evaluation mode; "cls" is
    the first token of the last layer.
    """
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    network = AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    columns = (
        [list(texts)] if isinstance(texts[0], str) else list(map(list, zip(*texts, strict=True)))
    )
    tokens = tokenizer(*columns, truncation=True, max_length=MAX_LENGTH)
    lengths = [len(row) for row in tokens["input_ids"]]
    order = sorted(range(len(texts)), key=lengths.__getitem__)
    found: dict[str, Any] = {}
    for rows in _batches(order, lengths):
        part = {key: [values[row] for row in rows] for key, values in tokens.items()}
        batch = tokenizer.pad(part, return_tensors="pt")
        output = network(**batch, output_hidden_states=True)
        for key, values in _pooled(output, batch["attention_mask"]).items():
            place = found.setdefault(key, np.empty((len(texts), values.shape[1]), np.float32))
            place[rows] = values.numpy()
    return found


def _batches(order: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Split rows in the order of their lengths into batches of `BATCH_TOKENS` tokens."""
    batches: list[list[int]] = [[]]
    for row in order:
        if batches[-1] and (len(batches[-1]) + 1) * lengths[row] > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(row)
    return batches


def _pooled(output: Any, mask: Tensor) -> dict[str, Tensor]:
    weights = mask[:, :, None].float()
    means = {
        layer_name(layer): (hidden * weights).sum(1) / weights.sum(1)
        for layer, hidden in enumerate(output.hidden_states)
    }
    return {**means, CLS: output.last_hidden_state[:, 0], HEAD_INPUT: output.pooler_output}
