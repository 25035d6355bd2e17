"""Encoders in full precision, and what they give for a few texts, by which they are recognised."""

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from isoadapt._utils.state import own_state
from isoadapt.adapters._maps import Floats
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._opened import Opened
from isoadapt.encoders._pooling import EXPORTED, OF_STATES, Pooling, several_layers
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import stand_in
from isoadapt.interop._reference import ENCODER, SERVE, Reference

_SENTENCE = "It was far, and then the road ran on under the trees by a river."
_SIZES = (1, 3, 8, 20)  # tokens of the texts made of random tokens
_BEYOND = 8  # tokens of the longest text beyond the maximum length
_UNLIMITED, _LONGEST = 40, 600  # tokens: where there is no maximum length, and at most
# Least difference of an encoder's vectors, relative to their lengths, that is taken for another
# encoder. On any machine, rounding stays below in this data type.
_LIMITS = {"float64": 1e-4, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}


@dataclass(frozen=True)
class Exact:
    """An encoder that is opened in float32, or a live model in its own data type."""

    opened: Opened
    settings: dict[str, Any]  # by which another encoder of the same checkpoint gives its vectors

    @classmethod
    def of(cls, encoder: TransformerEncoder) -> "Exact":
        """Open an encoder, whatever its data type and without its cache."""
        encoder = encoder._variant(cache=None, dtype="auto")
        opened = encoder.open()
        return cls(opened, _settings(encoder, opened))

    def truncated(self, max_length: int | None) -> "Exact":
        """Return the same encoder with another maximum length."""
        opened = replace(self.opened, max_length=max_length)
        return Exact(opened, self.settings | {"max_length": opened.length()})

    @own_state(models=True)
    def vectors(self, texts: list[str]) -> Floats:
        """Compute the vectors (n, d) of texts."""
        return self.opened.encode(Texts(texts)).astype(np.float64)

    @cached_property
    def reference(self) -> Reference:
        """What the encoder gives for a few texts, which are encoded once."""
        tokenizer, limit = self.opened.backbone.tokenizer, _LIMITS[self.settings["dtype"]]
        texts, empty = probe_texts(tokenizer, self.settings["max_length"]), stand_in(tokenizer)
        vectors = self.vectors(texts)
        return Reference(texts, vectors, None, limit, self.settings, [ENCODER], stand_in=empty)

    def is_same(self, other: "Exact") -> bool:
        """Return whether both have one model and pooling, so that their vectors are the same."""
        pooled = [(each.settings["pooling"], each.settings["layer"]) for each in (self, other)]
        return self.opened.backbone is other.opened.backbone and pooled[0] == pooled[1]

    def check(self, reference: Reference, name: str) -> None:
        """Raise ValueError unless the encoder gives the vectors of the reference of another one."""
        wanted, own = reference.settings, self.reference
        length, vectors = wanted["max_length"], own.vectors
        if (own.texts, self.settings["max_length"]) != (reference.texts, length):
            vectors = self.truncated(length).vectors(reference.texts)
        if vectors.shape == reference.vectors.shape:
            sizes = np.linalg.norm(reference.vectors, axis=1)
            differences = np.linalg.norm(vectors - reference.vectors, axis=1) / sizes
            if differences.max() <= max(reference.limit, own.limit):
                return
        folder, names = str(self.opened.backbone.folder), ("pooling", "layer")
        recorded, found = (
            ", ".join(f"{each}={settings[each]!r}" for each in names)
            for settings in (wanted, self.settings)
        )
        fit = f"fit the adapter to TransformerEncoder({folder!r}, {found}).transform(texts)"
        if recorded != found:
            raise ValueError(
                f"the adapter was fitted to vectors with {recorded} ({name}), but the checkpoint "
                f"{folder!r} gives vectors with {found}: {fit}, or {SERVE}"
            )
        raise ValueError(
            f"the adapter was fitted to vectors of another checkpoint ({name}) than {folder!r}, "
            f"with other weights or another tokenizer: use that checkpoint or a copy of it, or "
            f"{fit}, or {SERVE}"
        )


def _settings(encoder: TransformerEncoder, opened: Opened) -> dict[str, Any]:
    """Return the settings by which another encoder of the same checkpoint gives its vectors."""
    pooling, length = opened.pooling, opened.length()
    setting: Any = pooling.modes[0]
    named = setting in OF_STATES and pooling == Pooling((setting,), layers=pooling.layers)
    if pooling.aligned is not None:
        setting = repr(pooling.aligned)
    elif several_layers(encoder.pooling):
        setting = [list(part) for part in pooling.parts]
    elif not (named or pooling.is_head_input):
        setting = "auto" if opened.backbone.head is None else EXPORTED  # as files decide
    return {
        "pooling": setting,
        "layer": int(opened.backbone.hidden_state(encoder.layer)),
        "max_length": length and int(length),
        "dtype": str(opened.backbone.model.dtype).removeprefix("torch."),
    }


def probe_texts(tokenizer: Any, max_length: int | None) -> list[str]:
    """Return an empty text, and texts of random tokens, the last longer than `max_length`."""
    tokenizer = copy.deepcopy(tokenizer)  # it stores the truncation of its last call
    special = {*tokenizer.all_special_ids}
    ids = [number for number in range(len(tokenizer)) if number not in special]
    longest = min(_LONGEST, _UNLIMITED if max_length is None else max_length + _BEYOND)
    rng = np.random.default_rng(0)
    found = ["", _SENTENCE]
    for size in (*_SIZES, longest):
        text = tokenizer.decode(rng.choice(ids, size).tolist()).strip()
        if tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]:
            found.append(text)
    return found
