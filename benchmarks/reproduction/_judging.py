"""Judgement of the claims of a paper, on bases that have learned their task."""

import traceback
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.reproduction._bases import PUBLISHED, learned
from benchmarks.reproduction._cells import Record, Suite
from benchmarks.reproduction._statistics import holm
from benchmarks.reproduction._verdicts import (
    NOT_JUDGED,
    NOT_SHOWN,
    WAITING,
    Claim,
    Judged,
)


class Line(NamedTuple):
    """A claim and its judgement; `adjusted` is p after Holm's adjustment."""

    claim: Claim
    judged: Judged
    adjusted: float | None


def judge_claims(claims: Sequence[Claim], records: Sequence[Record], suite: Suite) -> list[Line]:
    """Judge the claims of a paper, and adjust their p-values together."""
    judged = [_judge(claim, records, suite) for claim in claims]
    known = [number for number, item in enumerate(judged) if item.p is not None]
    adjusted = dict(zip(known, holm([judged[number].p or 0.0 for number in known]), strict=True))
    return [
        Line(claim, item, adjusted.get(number))
        for number, (claim, item) in enumerate(zip(claims, judged, strict=True))
    ]


def _judge(claim: Claim, records: Sequence[Record], suite: Suite) -> Judged:
    """Judge a claim if its base has learned; the message of an error becomes the reason."""
    try:
        judged = claim.judge(records)
    except Exception as error:  # continue with the other claims
        traceback.print_exc()
        return Judged(
            "–", NOT_SHOWN, reason=f"could not be judged: {type(error).__name__}: {error}"
        )
    if claim.task not in PUBLISHED or not suite.is_published or judged.outcome == WAITING:
        return judged
    base = learned(records, claim.task)
    if base.passed:
        return judged
    if base.passed is None:
        return Judged(judged.ours, WAITING, judged.n_seeds, reason=base.text)
    return Judged(judged.ours, NOT_JUDGED, judged.n_seeds, reason=base.text)
