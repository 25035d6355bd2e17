"""Encodings that are kept while a search runs, so that its fits encode each text once."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt.encoders._texts import Texts

_KEPT: ContextVar[dict[Hashable, Any] | None] = ContextVar("_KEPT", default=None)


@contextmanager
def encodings_kept() -> Iterator[None]:
    """Keep what encoders compute in a ``with`` block of this thread in memory until its end."""
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def kept(identify: Callable[[], Hashable], compute: Callable[[], Any]) -> Any:
    """Return what was computed under the same key, where it is kept, or compute it."""
    if (found := _KEPT.get()) is None:
        return compute()
    if (key := identify()) not in found:
        found[key] = compute(), identify  # which holds live models, whose id is in the key
    return found[key][0]


def kept_vectors(
    identify: Callable[[], Hashable], texts: Texts, encode: Callable[[Texts], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Return the vectors (n, d) of distinct texts, of which those that are not kept are encoded."""
    if _KEPT.get() is None:
        return encode(texts)
    known, items = kept(identify, dict), texts.items()
    if missing := [i for i, item in enumerate(items) if item not in known]:
        known |= zip((items[i] for i in missing), encode(texts.take(missing)), strict=True)
    return np.array([known[item] for item in items])
