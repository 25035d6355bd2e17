"""
Serve labels and vectors to OpenAI clients
==========================================

``python examples/server.py FOLDER`` serves a classifier that ``export_onnx`` wrote, with fastapi,
uvicorn, onnxruntime and tokenizers: vectors as OpenAI clients read them, labels beside.
"""

import json
import sys
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import uvicorn
from fastapi import Body, FastAPI
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
Texts = Annotated[str | list[str], Body(min_length=1, embed=True)]
Format = Annotated[Literal["float", "base64"], Body()]
folder = Path(sys.argv[1])
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
session = InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
config = json.loads((folder / "config.json").read_text("utf-8"))
app = FastAPI(title="Labels and vectors")


def answers(texts, batch_size=32):  # vector, labels, logits and number of tokens of each text
    names, several = config["id2label"], config["problem_type"] == "multi_label_classification"
    texts = [texts] if isinstance(texts, str) else texts
    for start in range(0, len(texts), batch_size):
        rows = tokenizer.encode_batch(texts[start : start + batch_size])
        fields = [(each.name, FIELDS[each.name]) for each in session.get_inputs()]
        given = {name: np.array([getattr(row, field) for row in rows]) for name, field in fields}
        vectors, logits = session.run(["sentence_vector", "logits"], given)
        chosen = logits > 0 if several else logits == logits.max(axis=1, keepdims=True)
        labels = [[names[str(number)] for number in np.flatnonzero(row)] for row in chosen]
        yield from zip(vectors, labels, logits, given["attention_mask"].sum(axis=1), strict=True)


@app.post("/v1/embeddings")
def embeddings(input: Texts, model: Annotated[str, Body()] = "", encoding_format: Format = "float"):
    data, n_tokens = [], 0
    for vector, labels, _, n in answers(input):
        out = b64encode(vector).decode() if encoding_format == "base64" else vector.tolist()
        data.append({"object": "embedding", "index": len(data), "embedding": out, "labels": labels})
        n_tokens += int(n)
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "model": model, "data": data, "usage": usage}


@app.post("/v1/classify")
def classify(input: Texts):
    return {"data": [{"labels": x, "logits": y.tolist()} for _, x, y, _ in answers(input)]}


uvicorn.run(app, host="127.0.0.1", port=8000)
