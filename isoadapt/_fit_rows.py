"""What an AdaptedEncoder fits its adapter to: the given texts, general sentences, a teacher."""

import re
import warnings
import zlib
from functools import partial
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_consistent_length
from tqdm.auto import tqdm

from isoadapt._utils.containers import as_values, comparable
from isoadapt._utils.copies import copy_hashes
from isoadapt._utils.messages import shown, shows_progress, warn
from isoadapt._utils.sklearn_private import _num_samples, _safe_indexing
from isoadapt.adapters import LogitPreservingWhitening
from isoadapt.adapters._rows import check_frequencies
from isoadapt.datasets import load_general_sentences
from isoadapt.encoders import TransformerEncoder
from isoadapt.encoders._aligned import Aligned
from isoadapt.encoders._alignment import Part, align, check_tokens, last_layers
from isoadapt.encoders._kept import kept
from isoadapt.encoders._pooling import READOUT
from isoadapt.encoders._texts import Texts, as_texts
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead

_LAYERS = 1  # of the teacher, for "auto"
# General sentences, and their weight as a share of that of the texts.
POOLED, ALIGNED, WHITENED = (3000, 0.25), (1000, 0.5), (1000, 1.0)
_LEAST, _MOST = 500.0, 5.0  # of their weight, and of that of one
_WORD = re.compile(r"[^\W\d_]{3,}")  # three letters or more
_KNOWN = 0.25  # least share of characters in words of the sentences: .41 in English, .15 in others
_SAMPLE = 200  # texts whose words are looked at
_HELD = 5  # one of so many rows is held out to compute R²


class FitRows(NamedTuple):
    """The rows of a fit: given inputs of an encoder, and then general ones."""

    X: Any
    general: list[Any]
    given: dict[str, Any]  # weights and groups of the inputs
    share: float  # of the weight of the general ones in that of the inputs

    @classmethod
    def of(
        cls, X: Any, general: Any, encoder: Any, given: dict[str, Any], n: int, share: float
    ) -> Self:
        """Add up to `n` general sentences, or all that are given, to the inputs of an encoder."""
        rows = np.zeros((_num_samples(X), 1))
        given = given | {"sample_weight": check_frequencies(given.get("sample_weight"), rows)}
        given["groups"] = as_values(given.get("groups"), "groups")
        check_consistent_length(rows, given["groups"])
        given = {name: values for name, values in given.items() if values is not None}
        if (total := given.get("sample_weight", rows).sum()) <= 1 and "sample_weight" in given:
            raise ValueError(
                f"sample_weight sums to {total:.3g}, but weights are frequencies: pass counts, or "
                "divide the weights by their mean"
            )
        reads_texts = isinstance(encoder, TransformerEncoder)
        if isinstance(general, str):
            return cls(X, _suiting(as_texts(X))[:n] if reads_texts else [], given, share)
        try:
            added = as_texts(general).items() if reads_texts and _has_items(general) else general
        except (TypeError, ValueError) as error:
            raise type(error)(f"general, as inputs X of the encoder: {error}") from error
        return cls(X, list(added) if _has_items(added) else [], given, share)

    @property
    def n_own(self) -> int:
        """Number of given inputs."""
        return _num_samples(self.X)

    def stacked(self, vectors: Any, encoder: Any) -> Any:
        """Return the vectors of the inputs, and below them those of the general ones (n, d)."""
        return np.vstack([vectors, encoder.transform(self.general)]) if self.general else vectors

    def weights(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the weights of the given inputs, and of the general ones."""
        own, n = self.given.get("sample_weight", np.ones(self.n_own)), len(self.general)
        each = max(self.share * own.sum(), _LEAST) / max(n, 1)
        return own, np.full(n, min(each, _MOST))

    def options(self) -> dict[str, Any]:
        """Return the weights and groups of all rows, as far as they are needed."""
        if not self.general:
            return self.given
        found: dict[str, Any] = {"sample_weight": np.concatenate(self.weights())}
        if "groups" in self.given:
            names = [f"general {i}" for i in range(len(self.general))]
            found["groups"] = np.array([*map(str, self.given["groups"]), *names])
        return found

    def aligned(
        self, encoder: Any, teacher: Any, layers: Aligned, held: NDArray[np.bool_]
    ) -> tuple[Any, Any]:
        """Return encoders with a teacher's last layers, fitted to all rows and without some."""
        parts, hidden = self._parts(held), not shows_progress(encoder.verbose)
        with tqdm(unit=" texts", desc="Aligning", disable=hidden) as bar:
            both = kept(
                lambda: (encoder.identity(), teacher.identity(), layers.digest, comparable(parts)),
                partial(align, encoder.open(), teacher.open(), layers, parts, bar.update),
            )
        found, tested = (encoder._variant(pooling=each) for each in both)
        return found, tested

    def _parts(self, held: NDArray[np.bool_]) -> list[Part]:
        """Return the texts for the alignment, each once."""
        own, of_general = self.weights()
        texts, inverse = as_texts(self.X).unique()
        first = np.unique(inverse, return_index=True)[1]
        found = [Part(texts, np.bincount(inverse, own), held[first])]
        if self.general:
            found.append(Part(as_texts(self.general), of_general, held[self.n_own :]))
        return found

    def held(self, targets: Any) -> NDArray[np.bool_]:
        """Choose a fifth of the rows or groups, or none if nothing with a weight would be left."""
        hashes = copy_hashes(targets, 0.0)
        if "groups" in self.given:
            groups = [zlib.crc32(str(group).encode()) for group in self.given["groups"]]
            hashes[: self.n_own] = groups
        held = hashes % _HELD == 0
        return held & ((np.concatenate(self.weights()) > 0) & ~held).any()


class ReadoutRows(NamedTuple):
    """What a TeacherReadout is fitted to: columns of rows, and the teacher's vectors."""

    rows: FitRows
    columns: NDArray[Any]
    targets: NDArray[Any]
    n_predicted: int  # last columns that are predictions of the targets

    def beside(self, columns: Any, targets: Any, given: dict[str, Any]) -> Self:
        """Return the general rows with others in the place of the given ones."""
        n, rows = self.rows.n_own, self.rows._replace(X=columns, given=given)
        columns, targets = np.vstack([columns, self.columns[n:]]), [targets, self.targets[n:]]
        return self._replace(rows=rows, columns=columns, targets=np.vstack(targets))

    def fit(self, readout: Any) -> None:
        """Fit a readout."""
        readout._n_predicted = self.n_predicted
        readout.fit(self.columns, self.targets, **self.rows.options())
        del readout._n_predicted

    def explained(self, readout: Any, tested: Any, held: NDArray[np.bool_]) -> tuple[float, float]:
        """Return R² of held-out given and general rows; `tested` has layers fitted without them."""
        rows, columns, targets, _ = self
        weights, found = np.concatenate(rows.weights()), []
        reader = clone(readout).set_params(ridge=readout.ridge_)
        reader._n_predicted = self.n_predicted
        try:
            with warnings.catch_warnings(action="ignore"):
                reader.fit(columns, targets, np.where(held, 0.0, weights))
        except ValueError:  # too few rows are left
            return float("nan"), float("nan")
        for start, inputs in ((0, rows.X), (rows.n_own, rows.general)):
            chosen = np.flatnonzero((held & (weights > 0))[start : start + _num_samples(inputs)])
            places, read = chosen + start, float("nan")
            if len(places) > 1:
                vectors = columns[places]
                if tested is not None:
                    vectors = tested.transform(_safe_indexing(inputs, chosen))
                read = reader.score(vectors, targets[places], weights[places])
            found.append(read)
        return found[0], found[1]


def needs_general(general: Any, adapter: Any, encoder: Any, columns: Any = None) -> bool:
    """Whether LogitPreservingWhitening is fitted to general sentences, or may be if no columns."""
    whitens = isinstance(adapter, LogitPreservingWhitening) and not adapter._needs_y()
    if isinstance(general, str):
        if not whitens or not isinstance(encoder, TransformerEncoder):
            return False
        head = LinearHead.from_estimator(adapter.head)
        return columns is None or adapter._parts_classes(Moments().update(columns), head)
    if _has_items(general) and not whitens and columns is not None:
        raise ValueError(
            f"general={shown(general)} is for a TeacherReadout, or LogitPreservingWhitening with a "
            f"head that is fitted, but the adapter is {shown(adapter)}: choose general='auto'"
        )
    return _has_items(general)


def _has_items(general: Any) -> bool:
    """Whether there are general inputs, in a list, an array or a column of a table."""
    return general is not None and len(general) > 0


def _suiting(texts: Texts) -> list[str]:
    """Return the English sentences of this package, or none if the words of texts are others."""
    sentences = load_general_sentences()
    sample = texts.take(range(0, len(texts), -(-len(texts) // _SAMPLE)))
    known = {*_WORD.findall(" ".join(sentences).lower())}
    own = " ".join([*sample.first, *(sample.second or [])]).lower()
    inside = sum(len(word) for word in _WORD.findall(own) if word in known)
    if inside >= _KNOWN * len("".join(own.split())):
        return sentences
    warn(
        "general='auto' adds no English sentences to the fit, because the words of your texts are "
        "others; pass general=[…], sentences on all subjects in their language, or general=None"
    )
    return []


def teachers_layers(encoder: Any, teacher: Any, X: Any, n: int | str) -> Aligned | None:
    """Return the last layers of a teacher; None for 0, and with a warning where "auto" has none."""
    if n == 0:
        return None
    texts = as_texts(X) if isinstance(encoder, TransformerEncoder) else None
    try:
        if any(not isinstance(each, TransformerEncoder) for each in (encoder, teacher)):
            raise ValueError("encoder and teacher are not both a TransformerEncoder")
        if encoder.pooling not in ("auto", READOUT):
            raise ValueError(f"the encoder has pooling={shown(encoder.pooling)}")
        n_layers, opened = _LAYERS if n == "auto" else int(n), teacher.open()
        found = kept(lambda: (teacher.identity(), n_layers), partial(last_layers, opened, n_layers))
        check_tokens(encoder.open(), opened, cast(Texts, texts))
        return found
    except ValueError as error:
        if n != "auto":
            raise ValueError(
                f"teacher_layers={n}, but {error}: choose 0, for pooled hidden states"
            ) from error
        warn(
            "the teacher's vectors are predicted from pooled hidden states, which is less exact "
            f"than its last layers, because {error}; teacher_layers=0 does so without a warning"
        )
        return None
