"""The ways to load an exported folder, and the comparison of each with the folder's reference."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import reason, warn
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._folder import fault_in, read_json, read_object, sentence_modules
from isoadapt.encoders._library import READOUT_CODE, readout_model
from isoadapt.encoders._loading import use_options
from isoadapt.encoders._models import quiet
from isoadapt.interop._exact import Exact
from isoadapt.interop._folder import read_folder
from isoadapt.interop._pipeline import take_apart
from isoadapt.interop._reference import (
    ENCODER,
    Check,
    Outputs,
    Reference,
    refuse_if_wrong,
    write_reference,
)

SENTENCES, CLASSIFIER = "SentenceTransformer", "AutoModelForSequenceClassification"
VECTORS, LOGITS = "sentence_vector", "logits"  # outputs; "embedding" may be the name of a node
FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}

_NO_LIMIT = 10**9  # smaller than the maximum length of tokenizers that have none


def check_written(folder: Path, reference: Reference, code: bool = False) -> Check:
    """Load a written folder as its users do, compare it with its reference, and store this."""
    settings = _settings(folder, SENTENCES in reference.loaders)
    reference = reference._replace(settings=reference.settings | settings)
    loaded = [_load(folder, name, reference, code) for name in reference.loaders]
    checks = [reference.compare(*each) for each in loaded]
    for check in checks:
        refuse_if_wrong(check)
    differences = {name: value for each in checks for name, value in each.differences.items()}
    check = checks[-1]._replace(differences=differences)
    if check.exceeds:
        warn(
            f"the exported model differs from encoder and adapter by more than rounding ({check}; "
            f"rounding gives up to {check.limit:.1e}), while predictions and nearest neighbours of "
            "the checked texts are the same: compare texts of your own before you serve it"
        )
        reference = reference._replace(limit=2 * check.largest)
    write_reference(folder, reference)
    return check


def check_loader(folder: Path, name: str, reference: Reference, code: bool) -> Check:
    """Load a folder in one way, and return how it differs, and what is wrong."""
    try:
        with quiet():
            if name == ENCODER:
                check = reference.compare(_encoder_vectors(folder, reference), reference.settings)
            else:
                check = reference.compare(*_load(folder, name, reference, code))
    except ImportError:  # it is not installed
        raise
    except Exception as error:  # whatever damaged files lead to
        wrong = f"cannot be used: {fault_in(folder) or reason(error)}"
        return Check(len(reference.texts), reference.limit, wrong=wrong)
    if check.exceeds and not check.wrong:
        return check._replace(wrong=f"beyond the limit of {check.limit:.1e}")
    return check


def _settings(folder: Path, sentence: bool) -> dict[str, Any]:
    """Return what outputs mean, and the files that no loader reads here."""
    config = read_object(folder / "config.json")
    found = {key: config.get(key) for key in ("id2label", "problem_type", "sentence_transformers")}
    read = sentence and not (folder / READOUT_CODE).exists()
    patterns = () if read else ("modules.json", "*sentence_*.json")
    files = [file for pattern in patterns for file in sorted(folder.glob(pattern))]
    return found | {file.name: read_json(file) for file in files}


def own_length(tokenizer: Any) -> int | None:
    """Return the number of tokens that a tokenizer truncates to; None if there is no limit."""
    return tokenizer.model_max_length if tokenizer.model_max_length < _NO_LIMIT else None


def _load(
    folder: Path, name: str, reference: Reference, code: bool
) -> tuple[Outputs, dict[str, Any]]:
    """Return the outputs of the batches through the loader or graph `name`, and the settings."""
    load = {SENTENCES: _sentence_vectors, CLASSIFIER: _logits}.get(name, _graph_outputs)
    outputs, length = load(folder / name, reference, code)
    limited = {"max_length": None if reference.settings["max_length"] is None else length}
    return outputs, limited | _settings(folder, SENTENCES in reference.loaders)


def _encoder_vectors(folder: Path, reference: Reference) -> Outputs:
    """Compute the vectors of a recorded encoder; raise ValueError if they are others."""
    names = ("model", "pooling", "layer", "max_length")
    saved = take_apart(read_folder(folder)[0]).encoder
    encoder = saved and saved[1]  # which may hold layers of a teacher
    if encoder is None:
        encoder = TransformerEncoder(**{name: reference.settings[name] for name in names})
    exact = Exact.of(encoder)
    exact.check(reference, "its record")
    return {"vectors": [exact.vectors(reference.texts)]}


def _sentence_vectors(path: Path, reference: Reference, code: bool) -> tuple[Outputs, int | None]:
    """Compute the vectors of the batches with sentence-transformers."""
    library = import_optional("sentence_transformers", feature=f"Checking {SENTENCES}", extra="st")
    kinds = [kind for kind, _ in sentence_modules(path.parent)]
    foreign = any("." in kind and not kind.startswith("sentence_transformers.") for kind in kinds)
    with torch.random.fork_rng(devices=[]):
        if foreign and not code:
            model = readout_model(path.parent, device="cpu")
        else:
            model = library.SentenceTransformer(str(path.parent), device="cpu", **use_options(code))
        vectors = [model.encode(part, show_progress_bar=False) for part in reference.batches()]
    return {"vectors": vectors}, model.max_seq_length


@torch.inference_mode()
def _logits(path: Path, reference: Reference, code: bool) -> tuple[Outputs, int | None]:
    """Compute the logits of the batches with transformers."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    options = use_options(code)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, **options)
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForSequenceClassification.from_pretrained(path.parent, **options).eval()
    names = inspect.signature(model.forward).parameters  # some tokenizers give more
    logits = []
    for part in reference.batches(reference.stand_in):
        tokens = tokenizer(part, padding=reference.padded, truncation=True, return_tensors="pt")
        taken = {name: values for name, values in tokens.items() if name in names}
        logits.append(model(**taken).logits.float().numpy())
    return {"logits": logits}, own_length(tokenizer)


def _graph_outputs(file: Path, reference: Reference, code: bool) -> tuple[Outputs, int | None]:
    """Compute vectors and logits of the batches with onnxruntime and tokenizers alone."""
    from tokenizers import Tokenizer

    library = import_optional("onnxruntime", feature=f"Checking {file.name}", extra="onnx")
    session = library.InferenceSession(file, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(file.parent / "tokenizer.json"))
    names = {"vectors": VECTORS} | ({} if reference.logits is None else {"logits": LOGITS})
    found = []
    for part in reference.batches(reference.stand_in):
        encoded = tokenizer.encode_batch(part)
        given = {
            each.name: np.array([getattr(row, FIELDS[each.name]) for row in encoded], np.int64)
            for each in session.get_inputs()
        }
        found.append(session.run([*names.values()], given))
    length = (tokenizer.truncation or {}).get("max_length")
    return dict(zip(names, zip(*found, strict=True), strict=True)), length
