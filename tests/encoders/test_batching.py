"""Blocks, batches and their order, memory limits, and the thread that tokenises."""

import threading
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from isoadapt.encoders import TransformerEncoder, _batching, _tokenization
from isoadapt.encoders._batching import run_batches, to_device
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import Tokens, tokenize_blocks
from tests.tiny_models import PAIRS, TEXTS

CORPUS = [" ".join(["cat"] * (1 + i % 7) + ["dog"] * (i % 3)) for i in range(21)]


def read(texts):
    """Stand in for a tokenizer with one token for each word."""
    ids = [[len(word) for word in text.split()] for text in texts.first]
    lengths = np.array([len(row) for row in ids])
    order = np.argsort(-lengths, kind="stable")
    flat = np.concatenate([ids[i] for i in order])
    return Tokens(order, lengths[order], {"input_ids": flat}, {"input_ids": 0}, False)


def sum_of_tokens(batch):
    return batch["input_ids"].sum(1, keepdim=True).float()


def run(corpus=CORPUS, embed=sum_of_tokens, reader=read, progress=lambda rows: None):
    out = np.full((len(corpus), 1), np.nan, dtype=np.float32)
    blocks = tokenize_blocks(Texts(corpus), reader)
    run_batches(blocks, embed, out, batch_tokens=20, equal_lengths=False, progress=progress)
    return out[:, 0]


def threads():
    return {thread for thread in threading.enumerate() if "ThreadPool" in thread.name}


@pytest.mark.parametrize("block", [1, 4, 20, 21, 1000])
@pytest.mark.parametrize("held", [1, 5, 1000])
def test_every_text_gets_its_own_vector(monkeypatch, block, held):
    monkeypatch.setattr(_tokenization, "_BLOCK", block)
    monkeypatch.setattr(_batching, "_HELD", held)
    rows = []
    got = run(progress=rows.append)
    assert got.tolist() == [sum(map(len, text.split())) for text in CORPUS]
    assert sum(rows) == len(CORPUS)


@pytest.mark.parametrize("inputs", [TEXTS, PAIRS])
def test_blocks_do_not_change_the_vectors_of_a_model(live, monkeypatch, inputs):
    encoder = TransformerEncoder(live, pooling="mean")
    expected = encoder.transform(inputs)
    monkeypatch.setattr(_tokenization, "_BLOCK", 3)
    np.testing.assert_allclose(encoder.transform(inputs), expected, atol=1e-5)


def test_long_texts_come_first_so_that_batches_are_dense(monkeypatch):
    monkeypatch.setattr(_tokenization, "_BLOCK", 6)
    lengths = [block.lengths for block in tokenize_blocks(Texts(CORPUS), read)]
    assert [len(rows) for rows in lengths] == [6, 6, 6, 3]
    assert (np.diff(np.concatenate(lengths)) <= 0).all()


def test_the_next_block_is_tokenised_while_the_model_runs(monkeypatch):
    monkeypatch.setattr(_tokenization, "_BLOCK", 7)
    started = []
    second = threading.Event()

    def spy(texts):
        started.append(len(texts))
        if len(started) == 2:
            second.set()
        return read(texts)

    def embed(batch):
        assert second.wait(timeout=60), "the next block is not tokenised while the model runs"
        return sum_of_tokens(batch)

    run(embed=embed, reader=spy)
    assert started == [7, 7, 7]


def test_what_stops_the_model_or_the_tokenizer_is_raised_and_ends_the_thread(monkeypatch):
    monkeypatch.setattr(_tokenization, "_BLOCK", 5)
    before = threads()

    for error in (KeyboardInterrupt, ValueError):
        embed = Mock(side_effect=error)
        with pytest.raises(error):
            run(embed=embed)
        assert threads() == before

    def fail(texts):
        if "dog" not in texts.first[0]:
            raise ValueError("no dog")
        return read(texts)

    with pytest.raises(ValueError, match="no dog"):
        run(corpus=["cat dog cat dog"] * 9 + ["cat"] * 9, reader=fail)
    assert threads() == before


def test_a_budget_halved_once_stays_halved(monkeypatch):
    monkeypatch.setattr(_tokenization, "_BLOCK", 7)
    failures = []

    def embed(batch):
        if batch["input_ids"].numel() > 10:
            failures.append(1)
            raise torch.OutOfMemoryError
        return sum_of_tokens(batch)

    got = run(embed=embed)
    assert got.tolist() == [sum(map(len, text.split())) for text in CORPUS]
    assert len(failures) == 1


class RecordingTensor:
    """Stand in for a tensor that records how it is copied."""

    pinned, sent = False, None

    def pin_memory(self):
        self.pinned = True
        return self

    def to(self, device, non_blocking=False):
        self.sent = (device.type, non_blocking)
        return self


@pytest.mark.parametrize(("device", "asynchronous"), [("cpu", False), ("cuda", True)])
def test_a_gpu_is_sent_pinned_memory_without_waiting(device, asynchronous):
    batch = to_device({"input_ids": RecordingTensor()}, torch.device(device))
    assert batch["input_ids"].pinned is asynchronous
    assert batch["input_ids"].sent == (device, asynchronous)
