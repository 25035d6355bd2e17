"""What an AdaptedEncoder fits its adapter to: the given texts, general sentences, a teacher."""

import re
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from isoadapt._utils.messages import shown, shows_progress, warn
from isoadapt.adapters import LogitPreservingWhitening
from isoadapt.datasets import load_general_sentences
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._alignment import align
from isoadapt.encoders._pooling import READOUT
from isoadapt.encoders._texts import Texts, as_texts
from isoadapt.heads import LinearHead

_LAYERS = 1  # of the teacher, for "auto"
_N_GENERAL = 3000  # sentences
_SHARE, _LEAST = 0.25, 500.0  # of their weight in that of the texts, and the weight at least
_MANY = 10  # classes from which whitening needs them
_WORD = re.compile(r"[^\W\d_]{3,}")  # three letters or more
_KNOWN = 0.25  # least share of characters in words of the sentences: .41 in English, .15 in others
_SAMPLE = 200  # texts whose words are looked at


class FitRows(NamedTuple):
    """The rows of a fit: given inputs of an encoder, and then general sentences."""

    X: Any
    general: list[str]
    options: dict[str, Any]  # weights and groups of the inputs

    @classmethod
    def of(cls, X: Any, general: Any, adapter: Any, options: dict[str, Any]) -> Self:
        """Choose the general sentences for an adapter."""
        if general is None or not _uses_general(adapter):
            return cls(X, [], options)
        return cls(X, _suiting(X) if isinstance(general, str) else as_texts(general).first, options)

    def encoded(self, encoder: Any) -> Any:
        """Return the vectors of all rows (n, d)."""
        parts = [self.X, self.general] if self.general else [self.X]
        vectors = [encoder.transform(part) for part in parts]
        return np.vstack(vectors) if self.general else vectors[0]

    def parts(self) -> list[tuple[Texts, NDArray[Any]]]:
        """Return distinct texts with their weights, of the inputs and of the sentences."""
        texts, inverse = as_texts(self.X).unique()
        found = [(texts, np.bincount(inverse, self._weights()))]
        if self.general:
            added = self.fit_options()["sample_weight"][-len(self.general) :]
            found.append((Texts(self.general), added))
        return found

    def fit_options(self) -> dict[str, Any]:
        """Return the weights and groups of all rows."""
        n, own = len(self.general), self.options
        if not n:
            return own
        weights = self._weights()
        total = max(_SHARE * weights.sum(), _LEAST)
        found = {"sample_weight": np.append(weights, np.full(n, total / n))}
        if "groups" in own:
            groups = [*map(str, own["groups"]), *(f"general sentence {i}" for i in range(n))]
            found["groups"] = np.array(groups)
        return found

    def _weights(self) -> NDArray[Any]:
        """Return the weights of the given inputs."""
        weights = self.options.get("sample_weight")
        return np.ones(len(self.X)) if weights is None else np.asarray(weights, np.float64)


def _uses_general(adapter: Any) -> bool:
    """Whether general sentences improve a fit: of a readout, or a whitening for many classes."""
    if not isinstance(adapter, LogitPreservingWhitening):
        return adapter._needs_teacher
    head, classes = adapter.head, getattr(adapter.head, "classes_", None)
    return isinstance(head, LinearHead) and classes is not None and len(classes) >= _MANY


def _suiting(X: Any) -> list[str]:
    """Return the English sentences of this package, or none if the words of X are others."""
    sentences, texts = load_general_sentences(), as_texts(X)
    sample = texts.take(range(0, len(texts), -(-len(texts) // _SAMPLE)))
    known = {*_WORD.findall(" ".join(sentences).lower())}
    own = " ".join([*sample.first, *(sample.second or [])]).lower()
    inside = sum(len(word) for word in _WORD.findall(own) if word in known)
    if inside >= _KNOWN * len("".join(own.split())):
        return sentences[:_N_GENERAL]
    warn(
        "general='auto' adds no English sentences to the fit, because the words of your texts are "
        "others; pass general=[…], sentences on all subjects in their language, or general=None"
    )
    return []


def with_teacher_layers(
    encoder: Any, teacher: Any, parts: list[tuple[Texts, NDArray[Any]]], n_layers: int | str
) -> Any:
    """Return an encoder that runs last layers of the teacher on its states, fitted to texts.

    It is the encoder as it was for 0 layers, and with a warning for "auto" if it cannot be.
    """
    if n_layers == 0:
        return encoder
    try:
        if any(not isinstance(each, TransformerEncoder) for each in (encoder, teacher)):
            raise ValueError("encoder and teacher are not both a TransformerEncoder")
        if encoder.pooling not in ("auto", READOUT):
            raise ValueError(f"the encoder has pooling={shown(encoder.pooling)}")
        own, other = encoder.open(), teacher.open()
        wanted = _LAYERS if n_layers == "auto" else int(n_layers)
        total, hidden = sum(len(texts) for texts, _ in parts), not shows_progress(encoder.verbose)
        with tqdm(total=total, unit=" texts", desc="Aligning", disable=hidden) as bar:
            return encoder._variant(pooling=align(own, other, parts, wanted, bar.update))
    except ValueError as error:
        if n_layers != "auto":
            raise ValueError(
                f"teacher_layers={n_layers}, but {error}: choose 0, for pooled hidden states"
            ) from error
        warn(
            "the teacher's vectors are predicted from pooled hidden states, which is less exact "
            f"than its last layers, because {error}; teacher_layers=0 does so without a warning"
        )
        return encoder
