"""Small fitted adapters of every class, texts, and a place without isoadapt."""

import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import transformers

from isoadapt import adapters
from isoadapt.heads import LinearHead
from tests.tiny_models import WORDS

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 5)) @ rng.normal(size=(5, 5)) + 2
LABELS = np.array(["bad", "fair", "good"])[rng.integers(0, 3, 120)]
VALUES = X @ rng.normal(size=5) + rng.normal(size=120)
HEAD = LinearHead(rng.normal(size=(3, 5)), rng.normal(size=3), ["fair", "good", "bad"])
VECTORS = np.tanh(X @ rng.normal(size=(5, 7)))
ROWS = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(2, 12, 60)]  # texts to fit to
CLASSES = rng.integers(0, 3, len(ROWS))

VARIANTS = {
    "default": {},
    "frozen": {"head": HEAD},
    "joint": {"head": HEAD, "head_training": "joint"},
    "pca": {"method": "pca", "n_components": 2, "head": "logistic"},
    "ridge": {"head": "ridge"},
    "unsupervised": {"head": None},
    "into the head": {"head": HEAD, "space": "head"},
}


def make(name, variant="default"):
    """An adapter, not fitted; None where the class does not know the variant."""
    cls = getattr(adapters, name)
    settings = VARIANTS[variant] | {"random_state": 0, "zeta": 0.0, "max_epochs": 2}
    known = set(cls._get_param_names())
    if not set(VARIANTS[variant]) <= known:
        return None
    adapter = cls(**{key: value for key, value in settings.items() if key in known})
    try:
        adapter._validate_params()
    except ValueError:
        return None
    return adapter


def fitted(name, variant="default"):
    return make(name, variant).fit(X, targets(name, variant))


def targets(name, variant="default"):
    if name == "TeacherReadout":
        return VECTORS
    return VALUES if variant == "ridge" else LABELS


def blurred(encoder):
    """Embeddings of ROWS with noise: a random model leaves some directions all but empty.

    Whitening would amplify the rounding of single precision in them.
    """
    embeddings = encoder.transform(ROWS).astype(np.float64)
    return embeddings + 0.3 * embeddings.std() * rng.normal(size=embeddings.shape)


def same(first, second):
    """Equal through and through: types, dtypes, shapes and every bit."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    if isinstance(first, LinearHead):
        return same(vars(first), vars(second))
    if hasattr(first, "to_arrays"):
        return same(first.to_arrays(), second.to_arrays())
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second or (first != first and second != second)


@contextmanager
def without_isoadapt():
    """Let imports of isoadapt fail meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.split(".")[0] == "isoadapt"]:
            patch.setitem(sys.modules, name, None)
        yield patch


def served_logits(folder, texts, padded=False, **options):
    """Logits of plain transformers, each text alone or all padded, without isoadapt."""
    batches = [texts] if padded else [[text] for text in texts]
    options |= {"return_tensors": "pt", "truncation": True, "padding": padded}
    with without_isoadapt(), torch.inference_mode():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        assert model.dtype == torch.float32
        return np.concatenate([model(**tokenizer(each, **options)).logits for each in batches])
