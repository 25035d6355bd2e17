"""What identifies the vectors of a checkpoint: the bytes of its files, and the encoder's settings.

The cache uses it, without loading a model. A checkpoint that was saved again by another version of
transformers is another. Whether the files have changed since they were read is told by
:func:`~isoadapt.encoders._folder.fingerprint`. All digests are stored on disk, so they must stay as
they are.
"""

import hashlib
import time
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple

from isoadapt.encoders._folder import base_folder, checkpoint_files, fingerprint
from isoadapt.encoders._texts import Texts

# Version of the encoding procedure, which is part of every key. Raise it with each change of
# tokenisation, batching or pooling that changes vectors, so that caches do not return vectors that
# the current code would not compute.
VECTORS_VERSION = 3

_COARSEST_CLOCK_NS = 2 * 10**9  # the coarsest resolution of file times
_DIGESTS: dict[Hashable, bytes] = {}


class Identity(NamedTuple):
    """A digest of what determines vectors, and the state of the files, which any change alters."""

    digest: bytes
    state: Hashable = None

    def with_settings(self, *settings: object) -> "Identity":
        """Return the identity under further settings, whose ``repr`` describes them fully."""
        digest = hashlib.sha256(self.digest + repr(settings).encode()).digest()
        return Identity(digest, self.state)


def checkpoint_identity(folder: Path) -> Identity:
    """Identify a checkpoint by its files' content, read again when their sizes or times change."""
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


def row_keys(identity: Identity, texts: Texts) -> list[bytes]:
    """Return a key of 20 bytes for each text, which also depends on the digest and the version."""
    version = VECTORS_VERSION.to_bytes(4, "little")
    start = hashlib.blake2b(version + identity.digest, digest_size=20)

    def key(*parts: bytes) -> bytes:
        row = start.copy()
        row.update(b"".join(len(part).to_bytes(8, "little") + part for part in parts))
        return row.digest()

    columns = [texts.first] if texts.second is None else [texts.first, texts.second]
    return [key(*map(str.encode, row)) for row in zip(*columns, strict=True)]
