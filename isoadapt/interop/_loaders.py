"""The ways to load an exported folder, and the comparison of each with outputs that it stores."""

import hashlib
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import reason
from isoadapt.adapters import Affine
from isoadapt.adapters._maps import Floats
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._folder import read_json, read_object
from isoadapt.encoders._identity import vector_source
from isoadapt.encoders._models import quiet
from isoadapt.encoders._texts import Texts
from isoadapt.interop._differences import (
    Check,
    Expected,
    Outputs,
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

    If `strict`, a difference beyond rounding that affects users is an error.
    """
    expected = expected._replace(settings=_settings(folder, expected))
    compare = compared if strict else measured
    checks = [compare(*_load(folder, name, expected), expected) for name in expected.loaders]
    differences = {name: value for each in checks for name, value in each.differences.items()}
    check = checks[-1]._replace(differences=differences)
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
    if not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is not a folder; check the name")
    try:
        content = json.loads((folder / _REFERENCE).read_text("utf-8"))
        if content.pop("sha256") != checksum(content):
            raise ValueError("its checksum is wrong")
        arrays = {name: content[name] and np.array(content[name]) for name in ("vectors", "logits")}
        return Expected(**content | arrays)
    except Exception as error:  # whatever a damaged file leads to
        raise ValueError(
            f"{folder / _REFERENCE}, which exports and merges write with the outputs to compare "
            f"with, is missing or damaged ({reason(error)}): name a folder that they wrote, or "
            "export or merge again, since earlier versions did not write it (a folder of "
            "save_adapter has none: load_adapter compares checksums)"
        ) from error


def check_loader(folder: Path, name: str, expected: Expected) -> Check:
    """Load a folder in one way, and return how it differs, and what is wrong."""
    try:
        with quiet():
            check = measured(*_load(folder, name, expected), expected)
        found, wanted = _settings(folder, expected), expected.settings
    except ImportError:  # it is not installed
        raise
    except Exception as error:  # whatever damaged files lead to
        wrong = f"cannot be used: {reason(error)}"
        return Check(len(expected.texts), expected.limit, wrong=wrong)
    for key in {**wanted, **found}:
        if found.get(key) != wanted.get(key):
            wrong = f"{key} is {found.get(key)} instead of {wanted.get(key)}"
            return check._replace(wrong=wrong)
    if check.exceeds and not check.wrong:
        return check._replace(wrong=f"beyond the limit of {check.limit:.1e}")
    return check


def _settings(folder: Path, expected: Expected) -> dict[str, Any]:
    """Return what outputs mean, and what only a CrossEncoder reads, which is not loaded."""
    config = read_object(folder / "config.json")
    found = {key: config.get(key) for key in ("id2label", "problem_type", "sentence_transformers")}
    patterns = () if SENTENCES in expected.loaders else ("modules.json", "*sentence_*.json")
    files = [file for pattern in patterns for file in sorted(folder.glob(pattern))]
    return found | {file.name: read_json(file) for file in files}


def own_length(tokenizer: Any) -> int | None:
    """Return the number of tokens that a tokenizer truncates to; None if there is no limit."""
    return tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None


def _load(folder: Path, name: str, expected: Expected) -> tuple[Outputs, int | None]:
    """Return the outputs of the batches through the loader or graph `name`, and its length."""
    load = {SENTENCES: _sentence_vectors, CLASSIFIER: _logits}.get(name, _graph_outputs)
    return load(folder / name, expected)


def _sentence_vectors(path: Path, expected: Expected) -> tuple[Outputs, int | None]:
    """Compute the vectors of the batches with sentence-transformers."""
    library = import_optional("sentence_transformers", feature=f"Checking {SENTENCES}", extra="st")
    folder, options = str(path.parent), {"device": "cpu", "local_files_only": True}
    with torch.random.fork_rng(devices=[]):
        model = library.SentenceTransformer(folder, **options)
        vectors = [model.encode(part, show_progress_bar=False) for part in expected.batches()]
    return {"vectors": vectors}, model.max_seq_length


@torch.inference_mode()
def _logits(path: Path, expected: Expected) -> tuple[Outputs, int | None]:
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


def _graph_outputs(file: Path, expected: Expected) -> tuple[Outputs, int | None]:
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
