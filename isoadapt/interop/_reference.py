"""A reference, what a model gives for a few texts, and the comparison of others with it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoadapt._utils.messages import reason
from isoadapt.adapters import Affine
from isoadapt.adapters._maps import Floats

SERVE = "serve it with isoadapt.AdaptedEncoder instead"
REFERENCE = "reference.json"
ENCODER = "TransformerEncoder"  # loader of the references of encoders
_ROUNDING = 1e-6  # of float32 vectors over all layers of an encoder, relative to their length
_LEAST = 1e-5  # difference of cosines and of relative logits that is always taken for rounding
_WRONG = 1e-2  # a difference of cosines or, relative to the largest, of logits beyond rounding

Outputs = Mapping[str, Sequence[NDArray[Any]]]  # vectors and logits of each batch


class Check(NamedTuple):
    """The largest differences on a number of texts, alone and in a padded batch."""

    n_texts: int
    limit: float  # of all differences, from rounding
    differences: Mapping[str, float] = {}  # of cosines, and relative ones of lengths and logits
    predictions_changed: int = 0
    neighbours_changed: int = 0  # texts whose nearest one among the others is another
    wrong: str | None = None  # why the model should not be used

    @property
    def largest(self) -> float:
        """The largest difference, NaN if one is NaN."""
        return float(np.max([*self.differences.values()], initial=0.0))

    @property
    def exceeds(self) -> bool:
        """Whether a difference is larger than rounding explains."""
        return not self.largest <= self.limit

    def __str__(self) -> str:
        shown = [f"{name} {value:.1e}" for name, value in self.differences.items()]
        if "logits" in self.differences:
            shown[-1] += f" (relative), {self.predictions_changed} predictions changed"
        return ", ".join(shown)


class Reference(NamedTuple):
    """What a model gives for a few texts, by which it is recognised; stored beside it."""

    texts: list[str]
    vectors: Any  # (n, d); None if they are not compared
    logits: Any  # (n, C); None if there is no classifier
    limit: float  # of the differences, from rounding
    settings: dict[str, Any]  # on which outputs or their meaning depend, for JSON
    loaders: Sequence[str] = ()  # names of libraries' loaders, or of a graph
    padded: bool = False  # whether texts of several lengths may be in one batch
    stand_in: str = ""  # what plain tokenizers need in place of an empty text

    @property
    def version(self) -> str | None:
        """A digest of texts and vectors; None if these are not compared."""
        if self.vectors is None:
            return None
        digest = hashlib.sha256(repr(self.texts).encode())
        digest.update(self.vectors.astype(np.float32).tobytes())
        return digest.hexdigest()[:16]

    def adapted(self, map_: Affine, normalize: bool = False) -> "Reference":
        """Return the reference of an encoder with its adapter, for exported models."""
        vectors = map_(self.vectors)
        if normalize:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        limit, length = rounding_limit(map_, self.vectors), self.settings["max_length"]
        return self._replace(vectors=vectors, limit=limit, settings={"max_length": length})

    def batches(self, empty: str = "") -> list[list[str]]:
        """Return batches with each text alone, `empty` for an empty one, and one with most."""
        texts = [text or empty for text in self.texts]
        return [*([text] for text in texts), *[texts[:-1]] * self.padded]

    def compare(self, outputs: Outputs, settings: Mapping[str, Any]) -> Check:
        """Return how the outputs of a model for the batches differ, and settings if they do."""
        texts = np.arange(len(self.texts))
        if self.padded:
            texts = np.concatenate([texts, texts[:-1]])
        check = Check(len(self.texts), self.limit)
        for name, parts in outputs.items():
            found, wanted = np.concatenate(parts).astype(np.float64), getattr(self, name)[texts]
            if found.shape != wanted.shape:
                found = np.full_like(wanted, np.nan)
            if name == "vectors":
                check = _with_vectors(check, found, wanted, texts)
            else:
                check = _with_logits(check, found, wanted, self.settings.get("problem_type"))
        for key in {**self.settings, **settings}:
            given, stored = settings.get(key), self.settings.get(key)
            if given != stored:
                return check._replace(wrong=f"{key} is {given} instead of {stored}")
        return check


def rounding_limit(map_: Affine, vectors: Floats) -> float:
    """Return the relative difference of mapped vectors (n, d) that rounding gives."""
    # By how much, at most, the map increases relative differences of random direction.
    sizes, mapped = (np.linalg.norm(rows, axis=1) for rows in (vectors, map_(vectors)))
    mean_gain = np.linalg.norm(map_.matrix) / np.sqrt(map_.matrix.shape[1])
    amplification = float((mean_gain * sizes / np.maximum(mapped, 1e-300)).max())
    return max(2 * _ROUNDING * amplification, _LEAST)  # two vectors per cosine


def write_reference(folder: Path, reference: Reference) -> None:
    """Write a reference to a folder."""
    content = reference._asdict()
    for name in ("vectors", "logits"):
        if content[name] is not None:  # with as many digits as float32 needs
            content[name] = content[name].astype(np.float32).astype(str).astype(float).tolist()
    (folder / REFERENCE).write_text(f"{json.dumps(content, allow_nan=False)}\n", "utf-8")


def read_reference(folder: Path) -> Reference:
    """Read what the model in a folder must give."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"folder={str(folder)!r} is not a folder; pass one that export or fit wrote"
        )
    try:
        content = json.loads((folder / REFERENCE).read_text("utf-8"))
        arrays = {name: content[name] and np.array(content[name]) for name in ("vectors", "logits")}
        return Reference(**content | arrays)
    except Exception as error:  # whatever a damaged file leads to
        raise ValueError(
            f"{folder / REFERENCE}, which holds texts and outputs to compare with, is missing or "
            f"damaged ({reason(error)}): name a folder that was exported or merged, or an adapter "
            "that was saved with its encoder, or write it again"
        ) from error


def refuse_if_wrong(check: Check) -> None:
    """Raise ValueError if a prediction or nearest neighbour differs, or more than rounding can."""
    what = check.wrong
    if check.neighbours_changed:
        what = "nearest neighbours of texts in the exported model differ"
    if check.predictions_changed:
        what = "predictions of the exported model and of the pipeline differ"
    for name, difference in check.differences.items():
        if name != "lengths" and not difference <= _WRONG:  # NaN if there is no length
            what = f"{name} of the exported model differ by {difference:.3g}"
    if what:
        raise ValueError(
            f"the {what}, so nothing is written: the exported form cannot compute the vectors of "
            "this architecture (padding changes the vectors of some), or the adapter amplifies "
            f"rounding, which more shrinkage prevents; {SERVE}"
        )


def _with_logits(check: Check, found: Floats, wanted: Floats, problem: str | None) -> Check:
    """Add the largest relative difference of logits, and the number of predictions that differ."""
    scale = np.abs(wanted).max()
    differs = _best_differs(found, wanted, check.limit * scale)
    if problem == "multi_label_classification" or wanted.shape[1] == 1:
        crossed = np.where((found > 0) == (wanted > 0), 0.0, np.abs(wanted))
        differs = crossed.max(axis=1) > check.limit * scale
    differences = {**check.differences, "logits": float(np.abs(found - wanted).max() / scale)}
    changed = 0 if problem == "regression" else int(differs.sum())
    return check._replace(differences=differences, predictions_changed=changed)


def _with_vectors(check: Check, found: Floats, wanted: Floats, texts: NDArray[Any]) -> Check:
    """Add the largest differences of vectors, and the number of nearest neighbours that differ."""
    sizes, own = (np.linalg.norm(rows, axis=1, keepdims=True) for rows in (found, wanted))
    a, b = found / sizes, wanted / own
    old, new = b @ b.T, a @ a.T
    cosines = np.max([np.abs(new - old).max(), np.abs(1 - (a * b).sum(axis=1)).max()])
    differences = {"cosines": float(cosines), "lengths": float(np.abs(sizes / own - 1).max())}
    for each in (old, new):
        each[texts[:, None] == texts] = -np.inf  # the padded batch repeats all but one
    changed = int(_best_differs(new, old, check.limit).sum())
    return check._replace(differences=differences, neighbours_changed=changed)


def _best_differs(found: Floats, expected: Floats, tie: float) -> NDArray[np.bool_]:
    """Return in which rows the largest entry is another one, by more than a tie."""
    chosen = np.take_along_axis(expected, found.argmax(axis=1)[:, None], axis=1)[:, 0]
    return expected.max(axis=1) - chosen > tie
