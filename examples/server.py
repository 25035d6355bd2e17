"""
Serve labels and vectors to OpenAI clients
==========================================

``python examples/server.py FOLDER`` serves a classifier that ``export_onnx`` wrote, with fastapi,
uvicorn, onnxruntime and tokenizers. It answers with vectors of unit length, as OpenAI clients read
them, labels, probabilities and, with ``--novelty FILE``, whether a text is unlike all training
texts.
"""

import argparse
import json
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import uvicorn
from fastapi import Body, FastAPI, HTTPException, Request, Response
from onnxruntime import InferenceSession
from tokenizers import Tokenizer

FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
BATCH, MAX_TEXTS, MAX_BYTES = 32, 512, 2**20  # of a pass, and of a request
Texts = Annotated[str | list[str], Body(min_length=1, embed=True)]
Format = Annotated[Literal["float", "base64"] | None, Body()]

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--novelty", help="joblib file of a NoveltyDetector, which needs isoadapt")
parser.add_argument("--raw", action="store_true", help="for vectors that a head reads: as they are")
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, default=8000)
options = parser.parse_args()

tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
session = InferenceSession(options.folder / "model.onnx", providers=["CPUExecutionProvider"])
config = json.loads((options.folder / "config.json").read_text("utf-8"))
names = [config["id2label"][str(number)] for number in range(len(config["id2label"]))]
detector = None
if options.novelty:
    import joblib

    detector = joblib.load(options.novelty)
app = FastAPI(title="Labels and vectors")


def answers(texts):
    """Yield the vector of each text, its number of tokens, and what is said of it."""
    texts = [texts] if isinstance(texts, str) else texts
    if len(texts) > MAX_TEXTS:
        raise HTTPException(413, f"{len(texts)} texts: send at most {MAX_TEXTS} in a request")
    for start in range(0, len(texts), BATCH):
        try:
            rows = tokenizer.encode_batch(texts[start : start + BATCH])
        except TypeError as error:  # half a surrogate pair
            raise HTTPException(422, "a text is not valid Unicode") from error
        fields = [(each.name, FIELDS[each.name]) for each in session.get_inputs()]
        given = {name: np.array([getattr(row, field) for row in rows]) for name, field in fields}
        vectors, logits = session.run(["sentence_vector", "logits"], given)
        n_tokens = given["attention_mask"].sum(axis=1)
        yield from zip(vectors, n_tokens, described(vectors, logits), strict=True)


def described(vectors, logits):
    """Yield labels, probabilities, logits and novelty of each row."""
    if config["problem_type"] == "multi_label_classification":  # each label alone
        chosen, probabilities = logits > 0, (1 + np.tanh(logits / 2)) / 2
    else:
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        chosen, probabilities = odds == 1, odds / odds.sum(axis=1, keepdims=True)
    scores = [None] * len(vectors) if detector is None else detector.score_samples(vectors)
    for flags, shares, row, score in zip(chosen, probabilities, logits, scores, strict=True):
        said = {"labels": [names[number] for number in np.flatnonzero(flags)]}
        said["probabilities"] = dict(zip(names, shares.tolist(), strict=True))
        said["logits"] = row.tolist()
        if score is not None:  # cosine to the nearest training text
            said["novelty"] = {"score": float(score), "refused": bool(score < detector.offset_)}
        yield said


@app.post("/v1/embeddings")
def embeddings(
    input: Texts,
    model: Annotated[str | None, Body()] = None,
    encoding_format: Format = None,
    dimensions: Annotated[int | None, Body()] = None,
    normalize: Annotated[bool | None, Body()] = None,
):
    """Answer with vectors, of unit length unless ``"normalize": false`` is sent."""
    data, total = [], 0
    for vector, n_tokens, said in answers(input):
        if dimensions not in (None, len(vector)):
            raise HTTPException(422, f"dimensions={dimensions}: the vectors have {len(vector)}")
        if normalize or (normalize is None and not options.raw):
            vector = vector / (np.linalg.norm(vector) or 1.0)
        out = b64encode(vector).decode() if encoding_format == "base64" else vector.tolist()
        data.append({"object": "embedding", "index": len(data), "embedding": out, **said})
        total += int(n_tokens)
    usage = {"prompt_tokens": total, "total_tokens": total}
    return {"object": "list", "model": model, "data": data, "usage": usage}


@app.post("/v1/classify")
def classify(input: Texts):
    """Answer with labels, probabilities, logits and novelty, without vectors."""
    return {"data": [said for _, _, said in answers(input)]}


@app.get("/v1/models")
def models():
    """Answer with the one model."""
    name = options.folder.resolve().name
    model = {"id": name, "object": "model", "created": 0, "owned_by": "isoadapt"}
    return {"object": "list", "data": [model]}


@app.get("/health")
def health():
    """Answer that the model is loaded."""
    return {"status": "ok"}


@app.middleware("http")
async def limit(request: Request, call_next):
    """Refuse a body that is too large, or whose size is not said, before it is read."""
    size = request.headers.get("content-length", "0" if request.method == "GET" else "")
    if not size.isdecimal() or "transfer-encoding" in request.headers:
        return Response("send content-length", 411)
    if int(size) > MAX_BYTES:
        return Response(f"{size} bytes: send at most {MAX_BYTES} in a request", 413)
    return await call_next(request)


uvicorn.run(app, host=options.host, port=options.port)
