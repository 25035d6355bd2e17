"""What identifies the vectors of a checkpoint: the bytes of its files, and the encoder's settings.

The cache and the exported graphs use it, without loading a model. A checkpoint that was saved again
by another version of transformers is another. Whether the files have changed since they were read
is told by :func:`~isoadapt.encoders._folder.fingerprint`. All digests are stored on disk, so they
must stay as they are.
"""

import hashlib
import os
import time
from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sklearn.base import clone

from isoadapt.encoders._folder import base_folder, checkpoint_files, checkpoint_folder, fingerprint
from isoadapt.encoders._kinds import holds_classifier
from isoadapt.encoders._models import DTYPES
from isoadapt.encoders._pooling import (
    READOUT,
    LayersPooling,
    choose_pooling,
    needs_head,
    several_layers,
)
from isoadapt.encoders._sentence import sentence_pooling
from isoadapt.encoders._texts import Texts

if TYPE_CHECKING:
    from isoadapt.encoders._transformer import TransformerEncoder

# Version of the encoding procedure, which is part of every key. Raise it with each change of
# tokenisation, batching or pooling that changes vectors, so that caches do not return vectors that
# the current code would not compute.
VECTORS_VERSION = 3

_KEY_BYTES = 20
_COARSEST_CLOCK_NS = 2 * 10**9  # the coarsest resolution of file times
_DIGESTS: dict[Hashable, bytes] = {}


class Identity(NamedTuple):
    """A digest of everything that determines vectors, and the state of the files that were read.

    Two identities of one encoder are equal only if nothing changed in between. A change that was
    undone also makes them different.
    """

    digest: bytes
    state: Hashable = None

    def with_settings(self, *settings: object) -> "Identity":
        """Return the identity under further settings, whose ``repr`` describes them fully."""
        digest = hashlib.sha256(self.digest + repr(settings).encode()).digest()
        return Identity(digest, self.state)


def checkpoint_identity(folder: Path) -> Identity:
    """Identify a checkpoint by the content of its files; a copy elsewhere has the same digest.

    A process reads the files once, and again when their sizes or times change.
    """
    state = fingerprint(folder)
    if state in _DIGESTS:
        return Identity(_DIGESTS[state], state)
    started = time.time_ns()
    whole = hashlib.sha256()
    for file in checkpoint_files(folder):
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").digest()
        whole.update(repr((file.relative_to(folder).as_posix(), digest)).encode())
    base = base_folder(folder)
    if base is not None:
        whole.update(checkpoint_identity(base).digest)
    changed = max((max(times) for *_, times in state[1:]), default=0)
    if started - changed > _COARSEST_CLOCK_NS:  # otherwise a later change could have the same time
        _DIGESTS[state] = whole.digest()
    return Identity(whole.digest(), state)


def absolute(value: Any) -> Any:
    """Return a folder or a cache by its absolute path, which is "" for anything else."""
    if isinstance(value, str | os.PathLike):
        return str(Path(value).expanduser().absolute())
    return replace(value, folder=absolute(value.folder)) if hasattr(value, "folder") else ""


def noted(model: Any, cache: Any) -> dict[str, tuple[Any, str]]:
    """Return absolute paths of model and cache, and the digest of a folder with a relative path."""
    path = absolute(model)
    known = not os.path.isdir(path) or os.path.isabs(model)
    content = "" if known else checkpoint_identity(Path(path)).digest.hex()
    return {"model": (path, content), "cache": (absolute(cache), "")}


def located(value: Any, path: Any, content: str) -> Any:
    """Return the noted path of a model or cache if it exists, else `value`; a model if the same."""
    if os.path.isdir(getattr(path, "folder", path)):
        return path
    here = Path(absolute(value)) if content else Path()
    if content and not (here.is_dir() and checkpoint_identity(here).digest.hex() == content):
        raise FileNotFoundError(
            f"model={value!r} was the folder {path} in fit, which does not exist any more, and "
            f"{here} is not a copy of it; choose another one with set_params(model=...)"
        )
    return value


def variant(encoder: "TransformerEncoder", **params: Any) -> "TransformerEncoder":
    """Return a clone with other parameters that finds the folders that `fit` noted."""
    new = clone(encoder)
    new._noted = encoder._noted
    return new.set_params(**params)


def encoder_identity(encoder: "TransformerEncoder") -> Identity:
    """Identify the vectors of an encoder by the files of its checkpoint, without loading it."""
    folder = checkpoint_folder(encoder._at("model"), encoder.revision, encoder.trust_remote_code)
    head = needs_head(encoder.pooling) or holds_classifier(folder)
    read, parts = partial(sentence_pooling, folder, head), several_layers(encoder.pooling)
    pooling: Any = parts or choose_pooling(encoder.pooling, encoder.layer, head, read)
    if head and (parts == READOUT or (parts and needs_head(encoder.pooling))):
        pooling = (parts, own) if (own := read()) else parts  # the texts of a CrossEncoder
    return checkpoint_identity(folder).with_settings(
        pooling,
        int(encoder.layer),
        encoder.max_length and int(encoder.max_length),
        "int8" if encoder.dtype == "int8" else DTYPES[encoder.dtype],
        encoder.backend,
        encoder.trust_remote_code,
    )


def row_keys(identity: Identity, texts: Texts) -> list[bytes]:
    """Return a key of 20 bytes for each text, which also depends on the digest and the version."""
    version = VECTORS_VERSION.to_bytes(4, "little")
    start = hashlib.blake2b(version + identity.digest, digest_size=_KEY_BYTES)

    def key(*parts: bytes) -> bytes:
        row = start.copy()
        row.update(b"".join(len(part).to_bytes(8, "little") + part for part in parts))
        return row.digest()

    columns = [texts.first] if texts.second is None else [texts.first, texts.second]
    return [key(*map(str.encode, row)) for row in zip(*columns, strict=True)]


def describe_vectors(encoder: "TransformerEncoder") -> str:
    """Say in words how an encoder makes one vector of a text; the model is not run."""
    encoder._validate_params()
    backbone = encoder._outline()
    pooling, n = encoder._pooling(backbone), backbone.n_layers
    if isinstance(pooling, LayersPooling):
        return f"poolings of several hidden states (pooling={pooling.parts})"
    if pooling.is_head_input:
        return "input of the classifier's last linear layer (pooling='head_input')"
    layer = backbone.hidden_state(encoder.layer) % (n + 1)
    modes = "+".join(pooling.modes)
    steps = "".join(f", then {step}" for step in pooling.steps)
    return f"token states of layer {layer} of {n} (pooling={modes!r}){steps}"
