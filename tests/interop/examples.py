"""Small fitted adapters of every class, the checksum of a folder, and a place without isoadapt."""

import hashlib
import json
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from isoadapt import adapters
from isoadapt.heads import LinearHead

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 5)) @ rng.normal(size=(5, 5)) + 2
LABELS = np.array(["bad", "fair", "good"])[rng.integers(0, 3, 120)]
VALUES = X @ rng.normal(size=5) + rng.normal(size=120)
HEAD = LinearHead(rng.normal(size=(3, 5)), rng.normal(size=3), ["fair", "good", "bad"])
VECTORS = np.tanh(X @ rng.normal(size=(5, 7)))

VARIANTS = {
    "default": {},
    "frozen": {"head": HEAD},
    "mlp": {"network": "mlp"},
    "joint": {"head": HEAD, "head_training": "joint"},
    "exact": {"solver": "exact"},
    "pca": {"method": "pca", "n_components": 2, "head": "logistic"},
    "ridge": {"head": "ridge"},
    "unsupervised": {"head": None},
    "into the head": {"head": HEAD, "space": "head"},
}


def checksum(config):
    """The checksum of a configuration, as someone would compute it who changes it on purpose."""
    rest = {key: value for key, value in config.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def make(name, variant="default"):
    """An adapter, not fitted; None where the class does not know the variant."""
    cls = getattr(adapters, name)
    settings = VARIANTS[variant] | {"random_state": 0, "max_epochs": 2, "zeta": 0.0}
    known = set(cls._get_param_names())
    if not set(VARIANTS[variant]) <= known:
        return None
    adapter = cls(**{key: value for key, value in settings.items() if key in known})
    try:
        adapter._validate_params()
    except ValueError:
        return None
    return adapter


def fitted(name, variant="default", X=X):
    adapter = make(name, variant)
    return adapter.fit(X, targets(name, variant)[: len(X)])


def targets(name, variant="default"):
    if name == "TeacherReadout":
        return VECTORS
    return VALUES if variant == "ridge" else LABELS


@contextmanager
def without_isoadapt():
    """Let imports of isoadapt fail meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.split(".")[0] == "isoadapt"]:
            patch.setitem(sys.modules, name, None)
        yield patch
