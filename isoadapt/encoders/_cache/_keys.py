"""Keys of the cache: hashes of everything that determines the vector of a text."""

import hashlib
import json
import re
import tempfile
import time
from collections.abc import Hashable, Mapping
from itertools import chain
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from isoadapt.encoders._folder import base_folder, checkpoint_files, fingerprint
from isoadapt.encoders._locks import TOKENIZER_LOCK
from isoadapt.encoders._texts import Texts

# Version of the encoding procedure, which is part of every key. Raise it with each change of
# tokenisation, batching or pooling that changes vectors, so that caches do not return vectors that
# the current code would not compute.
VECTORS_VERSION = 2

_KEY_BYTES = 20
# Attributes of a tokenizer that do not affect tokens: its origin, the state left by earlier calls,
# and the vocabulary that its fast part was made from, which is among the files that it saves.
_INCIDENTAL = re.compile(
    r"name_or_path|init_kwargs|files_loaded|verbose|deprecation_warnings|.*cache.*|_vocab|_merges"
)
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


def live_identity(model: Any, tokenizer: Any) -> Identity:
    """Identify a live model by its current weights, its configuration and its tokenizer.

    The code of the model is only represented by the names of its classes.
    """
    whole = hashlib.sha256()
    for name, module in model.named_modules():
        whole.update(repr((name, type(module).__module__, type(module).__qualname__)).encode())
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        whole.update(repr((name, tensor.dtype, tuple(tensor.shape))).encode())
        whole.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    config = json.loads(model.config.to_json_string(use_diff=False))
    config.pop("_name_or_path", None)
    whole.update(repr(config).encode())
    whole.update(repr(_tokenizer_files(tokenizer)).encode())
    whole.update(repr(_attributes(tokenizer, ())).encode())
    return Identity(whole.digest())


def _tokenizer_files(tokenizer: Any) -> list[tuple[str, str]]:
    """Hash the files that a tokenizer saves, without truncation and padding of its last call."""
    with tempfile.TemporaryDirectory() as folder, TOKENIZER_LOCK:
        tokenizer.save_pretrained(folder)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    if "tokenizer.json" in files:
        state = json.loads(files["tokenizer.json"]) | {"truncation": None, "padding": None}
        files["tokenizer.json"] = json.dumps(state).encode()
    return sorted((name, hashlib.sha256(content).hexdigest()) for name, content in files.items())


def _attributes(value: Any, within: tuple[int, ...]) -> Any:
    """Describe an object by its attributes, some of which ``save_pretrained`` does not save.

    Objects that are not plain data, such as the Rust part of a tokenizer, are described by their
    class. `within` holds the ids of the enclosing objects, to detect cycles.
    """
    if isinstance(value, str | bytes | int | float | None):
        return value
    if id(value) in within:
        return "cycle"
    within = (*within, id(value))
    if isinstance(value, list | tuple):
        return [_attributes(item, within) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_attributes(item, within)) for item in value)
    if isinstance(value, Mapping):
        return sorted((repr(key), repr(_attributes(item, within))) for key, item in value.items())
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if type(value).__name__ == "AddedToken" or isinstance(value, re.Pattern):
        return kind, repr(value)
    if isinstance(value, ModuleType | FunctionType | type):
        return kind, value.__name__
    paths = getattr(value, "vocab_files_names", {})
    kept = {
        name: item
        for name, item in getattr(value, "__dict__", {}).items()
        if name not in paths and not _INCIDENTAL.fullmatch(name)
    }
    return kind, _attributes(kept, within)


def row_keys(identity: Identity, texts: Texts) -> list[bytes]:
    """Return a key of 20 bytes for each text, which also depends on the digest and the version."""
    version = VECTORS_VERSION.to_bytes(4, "little")
    start = hashlib.blake2b(version + identity.digest, digest_size=_KEY_BYTES)

    def key(*parts: bytes) -> bytes:
        row = start.copy()
        row.update(b"".join(len(part).to_bytes(8, "little") + part for part in parts))
        return row.digest()

    first = map(_bytes, texts.first)
    if texts.second is None:
        return [key(text) for text in first]
    return [key(*pair) for pair in zip(first, map(_bytes, texts.second), strict=True)]


def _bytes(text: str) -> bytes:
    """Encode a text; lone surrogates are encoded too."""
    return text.encode("utf-8", "surrogatepass")
