"""The ways to load an exported folder, and the comparison of each with outputs that it stores."""

import hashlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import reason
from isoadapt.adapters import Affine
from isoadapt.adapters._maps import Floats
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._folder import read_object
from isoadapt.encoders._identity import vector_source
from isoadapt.encoders._models import quiet
from isoadapt.encoders._texts import Texts
from isoadapt.interop._differences import (
    Check,
    Expected,
    compared,
    measured,
    probe_texts,
    rounding_limit,
)
from isoadapt.interop._folder import checksum

SENTENCES, CLASSIFIER = "SentenceTransformer", "AutoModelForSequenceClassification"
VECTORS, LOGITS = "sentence_vector", "logits"  # outputs; "embedding" may be the name of a node
FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}

_REFERENCE = "reference.json"
_LABELS = ("id2label", "problem_type", "sentence_transformers")  # they decide predictions
_NO_LIMIT = 10**9  # smaller than the maximum length of tokenizers that have none


def expect(
    encoder: TransformerEncoder, map_: Affine, normalize: bool = False
) -> tuple[Expected, Floats]:
    """Return texts with the adapted vectors that an export must give, and the encoder's vectors."""
    backbone, source = encoder._backbone(), vector_source(encoder)
    length = encoder._length(Texts([""]), backbone, encoder._pooling(backbone))
    texts = probe_texts(backbone.tokenizer, length)
    vectors = encoder.transform(texts).astype(np.float64)
    adapted = map_(vectors)
    if normalize:
        adapted = adapted / np.linalg.norm(adapted, axis=1, keepdims=True)
    version = hashlib.sha256(repr((source.checkpoint, source.kind, length, normalize)).encode())
    for values in (map_.matrix, map_.offset):
        version.update(np.asarray(values, dtype=np.float32).tobytes())
    limit = rounding_limit(map_, vectors)
    return Expected(texts, adapted, None, length, limit, version.hexdigest()[:16]), vectors


def check_written(folder: Path, expected: Expected, *, strict: bool = True) -> Check:
    """Load a written folder as its users do, compare what it gives, and store what it must give.

    Unless `strict`, a difference beyond rounding is no error.
    """
    expected = expected._replace(labels=_labels(folder))
    outputs: dict[str, Any] = {}
    for name in expected.doors:
        found, length = _door(name)(folder / name, expected)
        if expected.max_length not in (None, length):
            raise ValueError(
                f"{name} truncates to {length} tokens, not {expected.max_length}, in the new folder"
            )
        outputs |= found
    check = (compared if strict else measured)(outputs, expected)
    limit = 2 * check.largest if check.exceeds else expected.limit
    content = expected._replace(limit=limit)._asdict()
    for name in ("vectors", "logits"):
        if content[name] is not None:  # with as many digits as float32 needs
            content[name] = content[name].astype(np.float32).astype(str).astype(float).tolist()
    text = json.dumps(content | {"sha256": checksum(content)})
    (folder / _REFERENCE).write_text(f"{text}\n", "utf-8")
    return check


def read_reference(folder: Path) -> Expected:
    """Read what the model in a folder must give."""
    file = folder / _REFERENCE
    if not file.is_file():
        raise FileNotFoundError(
            f"{str(folder)!r} has no {_REFERENCE} with the outputs to compare with: it was not "
            "written by isoadapt's export or merge, or by an earlier version; export it again (of "
            "a folder of save_adapter, load_adapter compares checksums)"
        )
    try:
        content = read_object(file)
        if content.pop("sha256", None) != checksum(content):
            raise ValueError("its checksum is wrong")
    except ValueError as error:
        raise ValueError(
            f"{file} is damaged ({reason(error)}): copy the folder again, or export it again"
        ) from error
    arrays = {name: content[name] and np.array(content[name]) for name in ("vectors", "logits")}
    return Expected(**content | arrays)


def check_door(folder: Path, name: str, expected: Expected) -> Check:
    """Load a folder in one way, and return how it differs, and what is wrong."""
    check, wrong = Check(len(expected.texts), expected.limit), None
    try:
        with quiet():
            outputs, length = _door(name)(folder / name, expected)
        check = measured(outputs, expected)
        if expected.max_length not in (None, length):
            wrong = f"texts are truncated to {length} tokens instead of {expected.max_length}"
        elif expected.labels != _labels(folder):
            wrong = "id2label or problem_type in config.json has changed"
        elif check.exceeds:
            wrong = f"beyond the limit of {check.limit:.1e}"
    except ImportError:  # it is not installed
        raise
    except Exception as error:  # whatever damaged files lead to
        wrong = f"cannot be used: {reason(error)}"
    return check._replace(wrong=wrong)


def own_length(tokenizer: Any) -> int | None:
    """Return the number of tokens that a tokenizer truncates to; None if there is no limit."""
    return tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None


def _labels(folder: Path) -> dict[str, Any]:
    """Return the entries of a configuration that decide predictions."""
    config = read_object(folder / "config.json")
    return {name: config.get(name) for name in _LABELS}


def _door(name: str) -> Callable[[Path, Expected], tuple[dict[str, Any], int | None]]:
    """Return the function that computes the outputs of the batches, and the maximum length."""
    return {SENTENCES: _sentence_vectors, CLASSIFIER: _logits}.get(name, _graph_outputs)


def _sentence_vectors(path: Path, expected: Expected) -> tuple[dict[str, Any], int | None]:
    """Compute the vectors of the batches with sentence-transformers."""
    library = import_optional("sentence_transformers", feature=f"Checking {SENTENCES}", extra="st")
    folder, options = str(path.parent), {"device": "cpu", "local_files_only": True}
    with torch.random.fork_rng(devices=[]):
        model = library.SentenceTransformer(folder, **options)
        vectors = [model.encode(part, show_progress_bar=False) for part in expected.batches()]
    return {"vectors": vectors}, model.max_seq_length


@torch.inference_mode()
def _logits(path: Path, expected: Expected) -> tuple[dict[str, Any], int | None]:
    """Compute the logits of the batches with transformers."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path.parent, local_files_only=True)
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForSequenceClassification.from_pretrained(
            path.parent, local_files_only=True
        ).eval()
    names = inspect.signature(model.forward).parameters  # some tokenizers give more
    logits = []
    for part in expected.batches():
        tokens = tokenizer(part, padding=expected.padded, truncation=True, return_tensors="pt")
        taken = {name: values for name, values in tokens.items() if name in names}
        logits.append(model(**taken).logits.float().numpy())
    return {"logits": logits}, own_length(tokenizer)


def _graph_outputs(file: Path, expected: Expected) -> tuple[dict[str, Any], int | None]:
    """Compute vectors and logits of the batches with onnxruntime and tokenizers alone."""
    from tokenizers import Tokenizer

    library = import_optional("onnxruntime", feature=f"Checking {file.name}", extra="onnx")
    session = library.InferenceSession(file, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(file.parent / "tokenizer.json"))
    names = {"vectors": VECTORS} | ({} if expected.logits is None else {"logits": LOGITS})
    found = []
    for part in expected.batches():
        encoded = tokenizer.encode_batch(part)
        given = {
            each.name: np.array([getattr(row, FIELDS[each.name]) for row in encoded], np.int64)
            for each in session.get_inputs()
        }
        found.append(session.run([*names.values()], given))
    length = (tokenizer.truncation or {}).get("max_length")
    return dict(zip(names, zip(*found, strict=True), strict=True)), length
