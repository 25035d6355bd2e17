"""
Serve labels and vectors without torch
======================================

A service in onnxruntime and tokenizers alone: text in, label and adapted vector out, of one pass:
``python examples/serve_onnx.py [FOLDER]``. The folder is what
:func:`~isoadapt.interop.export_onnx` or ``isoadapt export my-adapter --onnx --out FOLDER`` writes.
Copy this file to the server; it does not import isoadapt unless it has to make the folder.
"""

import json
import sys
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer


class Service:
    """Labels and vectors of texts from a folder with ``model.onnx``."""

    def __init__(self, folder):
        folder = Path(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.session = InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        self.labels = json.loads((folder / "config.json").read_text("utf-8"))["id2label"]

    def __call__(self, texts):
        rows = self.tokenizer.encode_batch(texts)  # truncated and padded
        tokens = {
            "input_ids": [row.ids for row in rows],
            "attention_mask": [row.attention_mask for row in rows],
            "token_type_ids": [row.type_ids for row in rows],
        }
        inputs = {each.name: np.array(tokens[each.name]) for each in self.session.get_inputs()}
        vectors, logits = self.session.run(["sentence_vector", "logits"], inputs)
        return [self.labels[str(row.argmax())] for row in logits], vectors


# %%
# The folder, made here from the checkpoint of ``make demo`` if none is given.

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "served")
if not (folder / "model.onnx").exists():
    from isoadapt import AdaptedEncoder, LogitPreservingWhitening
    from isoadapt.datasets import make_acceptability
    from isoadapt.interop import export_onnx

    checkpoint = "isoadapt-demo/checkpoint"
    texts = make_acceptability(random_state=0).train_texts
    model = AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(texts)
    export_onnx(model, folder / "model.onnx")

service = Service(folder)
labels, vectors = service(["The cat sat on the mat.", "The cat mat on sat the."])
print("labels:", labels)
print("vectors:", vectors.shape)
