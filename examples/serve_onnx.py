"""
Serve labels and vectors without torch
======================================

A service that gives the label and the adapted vector of a text from one pass, and needs onnxruntime
and tokenizers alone: ``python examples/serve_onnx.py [CHECKPOINT]``. The class ``Service`` is all
that a server needs. The default checkpoint is the one that ``make demo`` fine-tunes.
"""

import json
import sys
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


class Service:
    """Labels and vectors of texts from a folder with ``model.onnx``."""

    def __init__(self, folder):
        folder = Path(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.session = InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        self.config = json.loads((folder / "config.json").read_text("utf-8"))

    def __call__(self, texts, batch_size=32):
        tokens = [sum(row.attention_mask) for row in self.tokenizer.encode_batch(texts)]
        order = np.argsort(tokens)  # so that batches need little padding
        starts = range(0, len(order), batch_size)
        batches = [order[start : start + batch_size] for start in starts]
        answers = [self._run([texts[row] for row in batch]) for batch in batches]
        back = np.argsort(order)
        vectors, logits = (np.concatenate(each)[back] for each in zip(*answers, strict=True))
        return [self.answer(row) for row in logits], vectors

    def _run(self, texts):
        rows = self.tokenizer.encode_batch(texts)  # truncated and padded
        names = [each.name for each in self.session.get_inputs()]
        inputs = {name: np.array([getattr(row, FIELDS[name]) for row in rows]) for name in names}
        return self.session.run(["sentence_vector", "logits"], inputs)

    def answer(self, logits):
        problem, labels = self.config["problem_type"], self.config["id2label"]
        if problem == "regression":
            return logits.tolist()
        if problem == "multi_label_classification" or len(logits) == 1:  # a sigmoid for each label
            return [labels[str(number)] for number in np.flatnonzero(logits > 0)]
        return labels[str(logits.argmax())]


# %%
# The folder is written once, where isoadapt is installed.

from isoadapt import AdaptedEncoder, LogitPreservingWhitening  # noqa: E402
from isoadapt.datasets import make_acceptability  # noqa: E402
from isoadapt.interop import export_onnx  # noqa: E402

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "isoadapt-demo/checkpoint"
corpus = make_acceptability(random_state=0)
model = AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(corpus.train_texts)
file = export_onnx(model, "isoadapt-demo/served/model.onnx", overwrite=True)

# %%
# The service gives what the model gives.

service = Service(file.parent)
labels, vectors = service(["The cat sat on the mat.", "The cat mat on sat the."])
print("labels:", labels)
print("vectors:", vectors.shape)
