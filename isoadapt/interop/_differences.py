"""Comparison of an exported model with encoder and adapter, before it appears."""

import copy
from typing import Any, NamedTuple

import numpy as np

from isoadapt._utils.messages import warn
from isoadapt.adapters import Affine
from isoadapt.adapters._maps import Floats

_SENTENCE = "It was far, and then the road ran on under the trees by a river."
_SIZES = (1, 3, 8, 20)  # tokens of the texts made of random tokens
_BEYOND = 8  # tokens of the longest text beyond the maximum length
_UNLIMITED, _LONGEST = 40, 600  # tokens: where there is no maximum length, and at most
_ROUNDING = 1e-6  # of float32 vectors over all layers of an encoder, relative to their length
_LEAST = 1e-5  # difference of cosines and of relative logits that is always taken for rounding
_PLAUSIBLE = 10  # a difference up to this multiple of rounding is called rounding in messages
_WRONG = 1e-2  # a difference of cosines or, relative to the largest, of logits beyond rounding


class Expected(NamedTuple):
    """What an exported model must give for some texts."""

    vectors: Floats  # (n, d)
    logits: Floats | None  # (n, C); None if there is no classifier
    max_length: int | None  # in tokens; None if there is no limit
    amplification: float  # factor by which the adapter increases relative differences


class Check(NamedTuple):
    """The largest differences on a number of texts, alone and in a padded batch."""

    n_texts: int
    cosines: float  # between the texts' vectors, and of each vector with the expected one
    logits: float | None  # relative to the largest; None if there is no classifier
    limit: float  # of both, from the rounding of float32

    @property
    def exceeds(self) -> bool:
        """Whether a difference is larger than rounding explains."""
        return max(self.cosines, self.logits or 0.0) > self.limit

    def sentence(self) -> str:
        """Describe the differences for a card."""
        more = " The folder differs by more, without an effect on them." if self.exceeds else ""
        return (
            f"Largest differences: {self}. Rounding, which the adapter amplifies, gives up to "
            f"{self.limit:.1e}.{more}"
        )

    def __str__(self) -> str:
        found = f"cosines {self.cosines:.1e}"
        return found if self.logits is None else f"{found}, logits {self.logits:.1e} (relative)"


def probe_texts(tokenizer: Any, max_length: int | None) -> list[str]:
    """Return texts of several lengths, most of random tokens, one longer than `max_length`."""
    tokenizer = copy.deepcopy(tokenizer)  # it stores the truncation of its last call
    special = {*tokenizer.all_special_ids}
    ids = [number for number in range(len(tokenizer)) if number not in special]
    longest = min(_LONGEST, _UNLIMITED if max_length is None else max_length + _BEYOND)
    rng = np.random.default_rng(0)
    found = [_SENTENCE]
    for size in (*_SIZES, longest):
        text = tokenizer.decode(rng.choice(ids, size).tolist()).strip()
        if tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]:
            found.append(text)
    return found


def batches(texts: list[str]) -> list[list[str]]:
    """Return batches with each text alone, and one with all but the last, which is the longest."""
    return [*([text] for text in texts), texts[:-1]]


def _with_padded(rows: Floats) -> Floats:
    """Return what is expected of the batches."""
    return np.concatenate([rows, rows[:-1]])


def compared(vectors: list[Floats], logits: list[Floats] | None, expected: Expected) -> Check:
    """Compare what an exported model gives for the batches of texts with what is expected.

    ValueError is raised if a prediction or a nearest neighbour differs, or more than rounding can.
    """
    limit = max(2 * _ROUNDING * expected.amplification, _LEAST)  # two vectors per cosine
    found = np.concatenate(vectors).astype(np.float64)
    cosines = _cosines(found, _with_padded(expected.vectors), limit)
    difference = None
    if expected.logits is not None and logits is not None:
        found = np.concatenate(logits).astype(np.float64)
        difference = _logits(found, _with_padded(expected.logits), limit)
    return Check(len(expected.vectors), cosines, difference, limit)


def warn_if_different(check: Check) -> None:
    """Warn if the exported model differs by more than rounding."""
    if check.exceeds:
        warn(
            f"the exported model differs from encoder and adapter by more than rounding ({check}; "
            f"rounding gives up to {check.limit:.1e}), while predictions and nearest neighbours of "
            "the checked texts are the same: compare texts of your own before you serve it"
        )


def amplification(map_: Affine, vectors: Floats) -> float:
    """Return the factor by which a map increases relative differences of random direction.

    It is the largest over vectors (n, d).
    """
    sizes, mapped = (np.linalg.norm(rows, axis=1) for rows in (vectors, map_(vectors)))
    mean_gain = np.linalg.norm(map_.matrix) / np.sqrt(map_.matrix.shape[1])
    return float((mean_gain * sizes / np.maximum(mapped, 1e-300)).max())


def _failure(what: str, found: Floats, expected: Floats, limit: float) -> ValueError:
    """Return the error with its cause; `limit` is the relative size of rounding."""
    differences = np.full(1, np.inf)
    if found.shape == expected.shape:
        differences = np.abs(found - expected).max(axis=1) / np.abs(expected).max()
    alone = differences[: (len(differences) + 1) // 2]  # without the padded batch
    cause = "the exported form cannot compute the vectors of this architecture"
    if differences.max() <= _PLAUSIBLE * limit:
        cause = "the adapter amplifies rounding, which more shrinkage prevents"
    elif alone.max() <= max(_WRONG, _PLAUSIBLE * limit):
        cause = "padding changes the vectors of this architecture"
    return ValueError(
        f"{what} in the exported model, so nothing is written: {cause}; serve it with "
        "isoadapt.AdaptedEncoder instead"
    )


def _logits(found: Floats, expected: Floats, limit: float) -> float:
    """Return the largest relative difference of logits; raise if a prediction differs."""
    scale, rows = np.abs(expected).max(), (found, expected, limit)
    difference = float(np.abs(found - expected).max() / scale)
    if not difference <= _WRONG:
        raise _failure(f"logits differ by {difference:.3g}", *rows)
    if _best_differs(found, expected, limit * scale):
        raise _failure("predictions differ from those of the pipeline", *rows)
    return difference


def _cosines(found: Floats, expected: Floats, limit: float) -> float:
    """Return the largest difference of cosines; raise if a nearest neighbour differs."""
    difference, rows = float("inf"), (found, expected, limit)
    if found.shape == expected.shape:
        a, b = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in rows[:2])
        old, new = b @ b.T, a @ a.T
        difference = float(max(np.abs(new - old).max(), np.abs(1 - (a * b).sum(axis=1)).max()))
    if not difference <= _WRONG:  # NaN if there is no length to divide by
        raise _failure(f"cosines differ by {difference:.3g}", *rows)
    texts = np.arange(len(old)) % ((len(old) + 1) // 2)  # the padded batch repeats all but one
    for cosines in (old, new):
        cosines[texts[:, None] == texts] = -np.inf
    if _best_differs(new, old, limit):
        raise _failure("nearest neighbours of texts differ", *rows)
    return difference


def _best_differs(found: Floats, expected: Floats, tie: float) -> bool:
    """Return whether the largest entry of a row is another one, by more than a tie."""
    chosen = np.take_along_axis(expected, found.argmax(axis=1)[:, None], axis=1)[:, 0]
    return bool((expected.max(axis=1) - chosen > tie).any())
