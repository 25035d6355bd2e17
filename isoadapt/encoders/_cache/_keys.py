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

from isoadapt.encoders._batching import _TOKENIZER_LOCK
from isoadapt.encoders._models import base_folder, checkpoint_files, fingerprint
from isoadapt.encoders._texts import Texts

# The version of the way in which this package makes vectors, which every key of a cache contains.
# Raise it with each change of tokenisation, batching or pooling that changes vectors: caches then
# encode again instead of answering with vectors that the present code would not give.
VECTORS_VERSION = 2

_KEY_BYTES = 20
# Attributes of a tokenizer that do not affect tokens: its origin, what its use leaves behind, and
# the vocabulary that its fast part was made from, which is among the files that it saves.
_INCIDENTAL = re.compile(
    r"name_or_path|init_kwargs|files_loaded|verbose|deprecation_warnings|.*cache.*|_vocab|_merges"
)
_COARSEST_CLOCK_NS = 2 * 10**9  # no file system's times are coarser
_DIGESTS: dict[Hashable, bytes] = {}


class Identity(NamedTuple):
    """A digest of everything that vectors follow from, and the state of the files it was read from.

    Two identities of one encoder are equal only if nothing was changed in between, not even there
    and back.
    """

    digest: bytes
    state: Hashable = None

    def with_settings(self, *settings: object) -> "Identity":
        """Give the identity under settings whose ``repr`` says all about them."""
        digest = hashlib.sha256(self.digest + repr(settings).encode()).digest()
        return Identity(digest, self.state)


def checkpoint_identity(folder: Path) -> Identity:
    """Identify a checkpoint by the content of its files; a copy elsewhere has the same digest.

    Files are read once a process, and anew when their size or times change.

    Parameters
    ----------
    folder : Path
        Where the checkpoint lies.

    Returns
    -------
    Identity
        Of all files with weights, configuration, tokenizer, pooling and code.
    """
    state = fingerprint(folder)
    if state in _DIGESTS:
        return Identity(_DIGESTS[state], state)
    begun = time.time_ns()
    whole = hashlib.sha256()
    for file in checkpoint_files(folder):
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").digest()
        whole.update(repr((file.relative_to(folder).as_posix(), digest)).encode())
    base = base_folder(folder)
    if base is not None:
        whole.update(checkpoint_identity(base).digest)
    changed = max((max(times) for *_, times in state[1:]), default=0)
    if begun - changed > _COARSEST_CLOCK_NS:  # else another change could leave the same times
        _DIGESTS[state] = whole.digest()
    return Identity(whole.digest(), state)


def live_identity(model: Any, tokenizer: Any) -> Identity:
    """Identify a model in memory by its weights as they are now, its configuration and tokenizer.

    Parameters
    ----------
    model : PreTrainedModel
        The model.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.

    Returns
    -------
    Identity
        Code is known by the names of the model's classes only.
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
    """Give what it saves, but for the truncation and padding that its last call left behind."""
    with tempfile.TemporaryDirectory() as folder, _TOKENIZER_LOCK:
        tokenizer.save_pretrained(folder)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    if "tokenizer.json" in files:
        state = json.loads(files["tokenizer.json"]) | {"truncation": None, "padding": None}
        files["tokenizer.json"] = json.dumps(state).encode()
    return sorted((name, hashlib.sha256(content).hexdigest()) for name, content in files.items())


def _attributes(value: Any, within: tuple[int, ...]) -> Any:
    """Describe an object by its attributes: ``save_pretrained`` leaves out those set later on.

    What is not plain data, such as the Rust part of a tokenizer, is described by its class.
    `within` holds the ids of the objects around `value`, against cycles.
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
    """Give the key of each text's row.

    Parameters
    ----------
    identity : Identity
        Of the encoder.
    texts : Texts
        Texts or pairs.

    Returns
    -------
    list of bytes
        20 bytes each; equal only for equal texts under equal digests and equal versions.
    """
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
    return text.encode("utf-8", "surrogatepass")
