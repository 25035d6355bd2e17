"""Blocks, batches and their order, memory limits, and the thread that tokenises."""

import concurrent.futures.thread
import threading
from contextlib import closing
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from isoadapt.encoders._batching import embed_in_threads, write_vectors
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import Tokens, tokenize_blocks
from tests.small_blocks import small_blocks

CORPUS = [" ".join(["cat"] * (1 + i % 7) + ["dog"] * (i % 3)) for i in range(21)]
SUMS = [sum(map(len, text.split())) for text in CORPUS]


def read(texts):
    """Stand in for a tokenizer with one token for each word."""
    ids = [[len(word) for word in text.split()] for text in texts.first]
    lengths = np.array([len(row) for row in ids])
    order = np.argsort(-lengths, kind="stable")
    flat = np.concatenate([ids[i] for i in order])
    groups = np.zeros_like(order)
    return Tokens(order, lengths[order], groups, {"input_ids": flat}, {"input_ids": 0}, False)


def sum_of_tokens(batch):
    return batch["input_ids"].sum(1, keepdim=True).float()


def run(n=1, corpus=CORPUS, embed=sum_of_tokens, reader=read, progress=lambda rows: None):
    out = np.full((len(corpus), 1), np.nan, dtype=np.float32)
    with (
        closing(tokenize_blocks(Texts(corpus), reader)) as blocks,
        closing(embed_in_threads(blocks, [embed] * n, 20, False)) as batches,
    ):
        write_vectors(batches, out, progress)
    return out[:, 0].tolist()


@pytest.mark.parametrize(("block", "held", "n"), [(1, 5, 1), (4, 1, 2), (1000, 1, 1), (1000, 1, 2)])
def test_every_text_gets_its_own_vector(monkeypatch, block, held, n):
    monkeypatch.setattr(concurrent.futures.thread, "_shutdown", True)  # the main thread has ended
    rows = []
    with small_blocks(texts=block, batches=held):
        assert run(n, progress=rows.append) == SUMS
    assert sum(rows) == len(CORPUS)


@small_blocks(texts=6)
def test_long_texts_come_first_so_that_batches_are_dense():
    lengths = [block.lengths for block in tokenize_blocks(Texts(CORPUS), read)]
    assert [len(rows) for rows in lengths] == [6, 6, 6, 3]
    assert (np.diff(np.concatenate(lengths)) <= 0).all()


@pytest.mark.parametrize("n", [1, 2])
@small_blocks(texts=5)
def test_what_stops_the_model_or_the_tokenizer_is_raised_and_ends_the_threads(n):
    before, blocks = threading.enumerate(), [read(Texts(["cat dog"] * 5)), LookupError]
    for part, effects in {"embed": KeyboardInterrupt, "reader": blocks}.items():
        with pytest.raises((KeyboardInterrupt, LookupError)):
            run(n, **{part: Mock(side_effect=effects)})
        assert threading.enumerate() == before


@small_blocks(texts=7)
def test_a_budget_halved_once_stays_halved():
    failures = []

    def embed(batch):
        if batch["input_ids"].numel() > 10:
            failures.append(1)
            raise torch.OutOfMemoryError
        return sum_of_tokens(batch)

    assert run(embed=embed) == SUMS
    assert len(failures) == 1
    with pytest.raises(torch.OutOfMemoryError, match="one text of 12 tokens"):
        run(corpus=["cat " * 12], embed=embed)
