"""Comparison of a written sentence-transformers folder with the encoder and adapter it is of."""

import copy
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from isoadapt.adapters._maps import Floats
from isoadapt.encoders._models import quiet

_SENTENCE = "It was far, and then the road ran on under the trees by a river."
_SIZES = (1, 3, 8, 20)  # tokens of the texts made of random tokens
_BEYOND = 8  # tokens of the longest text beyond the maximum length
_UNLIMITED, _LONGEST = 40, 600  # tokens: where there is no maximum length, and at most
_COSINE, _LOGITS = 1e-4, 1e-4  # admissible differences: adapters amplify rounding


class Expected(NamedTuple):
    """What a folder must give for some texts."""

    vectors: Floats  # (n, d)
    logits: Floats | None  # (n, C); None if there is no classifier
    max_length: int | None  # in tokens; None if there is no limit


class Check(NamedTuple):
    """The largest differences on a number of texts, alone and in a padded batch."""

    n_texts: int
    cosines: float  # between the texts' vectors, and of each vector with the expected one
    logits: float | None  # relative to the largest; None if there is no classifier

    def __str__(self) -> str:
        found = f"cosines {self.cosines:.1e}"
        return found if self.logits is None else f"{found}, logits {self.logits:.1e} (relative)"


def probe_texts(tokenizer: Any, max_length: int | None) -> list[str]:
    """Return texts of several lengths, most of random tokens, one longer than `max_length`."""
    tokenizer = copy.deepcopy(tokenizer)  # it stores the truncation of its last call
    special = {*tokenizer.all_special_ids}
    ids = [number for number in range(len(tokenizer)) if number not in special]
    longest = min(_LONGEST, _UNLIMITED if max_length is None else max_length + _BEYOND)
    rng = np.random.default_rng(0)
    found = [_SENTENCE]
    for size in (*_SIZES, longest):
        text = tokenizer.decode(rng.choice(ids, size).tolist()).strip()
        if tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]:
            found.append(text)
    return found


def check_written(folder: Path, library: ModuleType, texts: list[str], expected: Expected) -> Check:
    """Load a folder as its users do, and compare the vectors and logits of texts.

    ValueError is raised if they differ by more than rounding, or if the length differs.
    """
    with quiet(), torch.random.fork_rng(devices=[]):
        model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        if expected.max_length not in (None, model.max_seq_length):
            raise ValueError(
                f"sentence-transformers {library.__version__} reads max_seq_length="
                f"{model.max_seq_length} from the written folder instead of {expected.max_length}"
            )
        vectors = [model.encode(part, show_progress_bar=False) for part in _batches(texts)]
        cosines = _cosines(_doubled(vectors), _with_padded(expected.vectors))
        if not cosines <= _COSINE:
            raise _failure(library, "cosines", cosines)
        if expected.logits is None:
            return Check(len(texts), cosines, None)
        difference = _doubled(_logits(folder, texts)) - _with_padded(expected.logits)
        logits = float(np.abs(difference).max() / np.abs(expected.logits).max())
        if not logits <= _LOGITS:
            raise _failure(library, "logits", logits)
    return Check(len(texts), cosines, logits)


def _batches(texts: list[str]) -> list[list[str]]:
    """Return batches with each text alone, and one with all but the last, which is the longest."""
    return [*([text] for text in texts), texts[:-1]]


def _with_padded(rows: Floats) -> Floats:
    """Return what is expected of the batches."""
    return np.concatenate([rows, rows[:-1]])


def _doubled(batches: list[NDArray[np.float32]]) -> Floats:
    return np.concatenate(batches).astype(np.float64)


def _failure(library: ModuleType, what: str, difference: float) -> ValueError:
    return ValueError(
        f"the {what} from the written folder differ by {difference:.3g} from those of encoder and "
        f"adapter, so no folder is written: sentence-transformers {library.__version__} cannot "
        "compute them for this architecture (padding changes the vectors of some), or the adapter "
        "amplifies rounding, which more shrinkage prevents; serve it with isoadapt.AdaptedEncoder "
        "instead"
    )


@torch.inference_mode()
def _logits(folder: Path, texts: list[str]) -> list[NDArray[np.float32]]:
    """Compute the logits of the classifier for each batch."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, local_files_only=True
    ).eval()
    tokens = [
        tokenizer(part, padding=True, truncation=True, return_tensors="pt")
        for part in _batches(texts)
    ]
    return [model(**_taken(batch, model)).logits.numpy() for batch in tokens]


def _taken(batch: Any, model: Any) -> dict[str, Any]:
    """Return the tokens that a model accepts, as some tokenizers give more."""
    names = inspect.signature(model.forward).parameters
    return {name: values for name, values in batch.items() if name in names}


def _cosines(found: Floats, expected: Floats) -> float:
    """Return the largest difference of cosines, NaN if there is no length to divide by."""
    if found.shape != expected.shape:
        return float("inf")
    a, b = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (found, expected))
    between = np.abs(a @ a.T - b @ b.T).max()
    return float(max(between, np.abs(1 - (a * b).sum(axis=1)).max()))
