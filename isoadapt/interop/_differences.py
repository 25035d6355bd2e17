"""Comparison of an exported model with encoder and adapter, before it appears."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoadapt._utils.messages import warn
from isoadapt.adapters import Affine
from isoadapt.adapters._maps import Floats

_SENTENCE = "It was far, and then the road ran on under the trees by a river."
_SIZES = (1, 3, 8, 20)  # tokens of the texts made of random tokens
_BEYOND = 8  # tokens of the longest text beyond the maximum length
_UNLIMITED, _LONGEST = 40, 600  # tokens: where there is no maximum length, and at most
_ROUNDING = 1e-6  # of float32 vectors over all layers of an encoder, relative to their length
_LEAST = 1e-5  # difference of cosines and of relative logits that is always taken for rounding
_WRONG = 1e-2  # a difference of cosines or, relative to the largest, of logits beyond rounding

Outputs = Mapping[str, Sequence[Floats]]  # vectors and logits of each batch


class Expected(NamedTuple):
    """What an exported model must give for some texts, and how it is loaded; stored beside it."""

    texts: list[str]
    vectors: Floats | None  # (n, d); None if they are not adapted
    logits: Floats | None  # (n, C); None if there is no classifier
    max_length: int | None  # in tokens; None if there is no limit
    limit: float  # of the differences, from the rounding of float32
    version: str | None = None  # of the vectors
    loaders: Sequence[str] = ()  # names of libraries' loaders, or of a graph
    padded: bool = True  # whether texts of several lengths may be in one batch
    settings: Mapping[str, Any] = {}  # in files, on which users of the outputs depend

    @property
    def problem_type(self) -> str | None:
        """The kind of the classifier, as in its configuration."""
        return self.settings.get("problem_type")

    def batches(self) -> list[list[str]]:
        """Return batches with each text alone, and one with all but the last, the longest."""
        return [*([text] for text in self.texts), *[self.texts[:-1]] * self.padded]


class Check(NamedTuple):
    """The largest differences on a number of texts, alone and in a padded batch."""

    n_texts: int
    limit: float  # of all differences, from the rounding of float32
    differences: Mapping[str, float] = {}  # of cosines, and relative ones of lengths and logits
    predictions_changed: int = 0
    neighbours_changed: int = 0  # texts whose nearest one among the others is another
    wrong: str | None = None  # why the folder should not be used

    @property
    def largest(self) -> float:
        """The largest difference, NaN if one is NaN."""
        return float(np.max([*self.differences.values()], initial=0.0))

    @property
    def exceeds(self) -> bool:
        """Whether a difference is larger than rounding explains."""
        return not self.largest <= self.limit

    def sentence(self) -> str:
        """Describe the differences for a card."""
        more = " The folder differs by more, without an effect on them." if self.exceeds else ""
        return (
            f"Largest differences: {self}. Rounding, which the adapter amplifies, gives up to "
            f"{self.limit:.1e}.{more}"
        )

    def __str__(self) -> str:
        shown = [f"{name} {value:.1e}" for name, value in self.differences.items()]
        if "logits" in self.differences:
            shown[-1] += f" (relative), {self.predictions_changed} predictions changed"
        return ", ".join(shown)


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


def measured(outputs: Outputs, max_length: int | None, expected: Expected) -> Check:
    """Return the differences between what a model gives for the batches and what is expected."""
    texts = np.arange(len(expected.texts))
    if expected.padded:
        texts = np.concatenate([texts, texts[:-1]])
    check = Check(len(expected.texts), expected.limit)
    for name, parts in outputs.items():
        found, wanted = np.concatenate(parts).astype(np.float64), getattr(expected, name)[texts]
        if found.shape != wanted.shape:
            found = np.full_like(wanted, np.nan)
        if name == "vectors":
            check = _with_vectors(check, found, wanted, texts)
        else:
            check = _with_logits(check, found, wanted, expected.problem_type)
    if expected.max_length in (None, max_length):
        return check
    wrong = f"maximum length is {max_length} tokens instead of {expected.max_length}"
    return check._replace(wrong=wrong)


def compared(outputs: Outputs, max_length: int | None, expected: Expected) -> Check:
    """Compare what an exported model gives for the batches of texts with what is expected.

    ValueError is raised if a prediction or a nearest neighbour differs, or more than rounding can.
    """
    check = measured(outputs, max_length, expected)
    if check.wrong:
        raise _failure(check.wrong)
    for name, difference in check.differences.items():
        if name != "lengths" and not difference <= _WRONG:  # NaN if there is no length
            raise _failure(f"{name} of the exported model differ by {difference:.3g}")
    if check.predictions_changed:
        raise _failure("predictions of the exported model differ from those of the pipeline")
    if check.neighbours_changed:
        raise _failure("nearest neighbours of texts in the exported model differ")
    return check


def warn_if_different(check: Check) -> None:
    """Warn if the exported model differs by more than rounding."""
    if check.exceeds:
        warn(
            f"the exported model differs from encoder and adapter by more than rounding ({check}; "
            f"rounding gives up to {check.limit:.1e}), while predictions and nearest neighbours of "
            "the checked texts are the same: compare texts of your own before you serve it"
        )


def rounding_limit(map_: Affine, vectors: Floats) -> float:
    """Return the relative difference of mapped vectors that rounding gives.

    A map increases relative differences of random direction by a factor, the largest over vectors
    (n, d).
    """
    sizes, mapped = (np.linalg.norm(rows, axis=1) for rows in (vectors, map_(vectors)))
    mean_gain = np.linalg.norm(map_.matrix) / np.sqrt(map_.matrix.shape[1])
    amplification = float((mean_gain * sizes / np.maximum(mapped, 1e-300)).max())
    return max(2 * _ROUNDING * amplification, _LEAST)  # two vectors per cosine


def _failure(what: str) -> ValueError:
    return ValueError(
        f"the {what}, so nothing is written: the exported form cannot compute the vectors of this "
        "architecture (padding changes the vectors of some), or the adapter amplifies rounding, "
        "which more shrinkage prevents; serve it with isoadapt.AdaptedEncoder instead"
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
