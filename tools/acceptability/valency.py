"""Phenomena of the complements of verbs, one function each.

A function draws an acceptable sentence and its unacceptable counterpart. Its docstring is an
example, in which the asterisk marks the unacceptable variant.
"""

from tools.acceptability.grammar import Grammar, a, be, join


def _transitivity(g: Grammar) -> tuple[str, str]:
    """The doctor praised/*sneezed the nurse."""
    subject, end, act = g.somebody(), g.adjunct(), g.pick(g.words.act).past
    if g.chance(0.5):
        verb, thing = g.verb_and_object(subject.text)
        rest = join(thing.text, end)
        return join(subject.text, verb.past, rest), join(subject.text, act, rest)
    return join(subject.text, act, end), join(subject.text, g.pick(g.words.meet).past, end)


def _passive(g: Grammar) -> tuple[str, str]:
    """The doctor was praised/*sneezed by Tom."""
    patient, end = g.person(), g.adjunct()
    agent = g.somebody(patient.text).text
    verb, past = g.pick(g.words.meet), be(patient.plural, past=True)
    if g.chance(0.5):
        thing, strong = g.thing(), g.pick(g.words.strong)
        start, rest = f"{thing.text} {be(thing.plural, past=True)}", join("by", agent, end)
        return join(start, strong.participle, rest), join(start, strong.gerund, rest)
    start, rest = join(patient.text, past), join("by", agent, end)
    act = g.pick(g.words.act)
    return join(start, verb.participle, rest), join(start, act.participle, rest)


def _dative(g: Grammar) -> tuple[str, str]:
    """Tom gave/*donated the doctor a clock."""
    subject, person = g.name(), g.person()
    give, donate = g.pick(g.words.give), g.pick(g.words.donate)
    thing = a(join(g.look(), g.pick(g.words.things).singular))
    end = g.adjunct()
    start, two = subject.text, f"{person.text} {thing}"
    if g.chance(0.5):
        return join(start, give.past, two, end), join(start, donate.past, two, end)
    return (
        join(start, donate.past, thing, "to", person.text, end),
        join(start, donate.past, two, end),
    )


def _particle(g: Grammar) -> tuple[str, str]:
    """Tom picked it up/*picked up it."""
    (verb, away), subject, end = g.pick(g.words.particle), g.somebody(), g.adjunct()
    pronoun = g.pick(("it", "them"))
    form = g.pick((verb.past, f"will {verb.base}", f"did not {verb.base}"))
    start = f"{subject.text} {form}"
    return join(start, pronoun, away, end), join(start, away, pronoun, end)


def _preposition(g: Grammar) -> tuple[str, str]:
    """Tom relied on/*of the doctor."""
    (verb, right, wrong), subject = g.pick(g.words.governed), g.somebody()
    other, end = g.somebody(subject.text).text, g.adjunct()
    form = g.pick((verb.past, f"did not {verb.base}", f"will {verb.base}"))
    start = f"{subject.text} {form}"
    if g.chance(0.3):
        start = f"who did {subject.text} {verb.base}"
        return f"{start} {right}?", f"{start} {g.pick(wrong)}?"
    return join(start, right, other, end), join(start, g.pick(wrong), other, end)


def _complement(g: Grammar) -> tuple[str, str]:
    """Tom decided to repair/*repairing the clock."""
    subject, end = g.somebody(), g.adjunct()
    other = g.name(subject.text).text
    verb, thing = g.verb_and_object(join(subject.text, other))
    want, enjoy = g.pick(g.words.want).past, g.pick(g.words.enjoy).past
    opine, meet = g.pick(g.words.opine).past, g.pick(g.words.meet).past
    clause = f"that {other} {verb.past}"
    good, bad = g.pick(
        (
            (f"{want} to {verb.base}", f"{want} to {verb.third}"),
            (f"{want} to {verb.base}", f"{want} {g.pick((verb.base, verb.gerund))}"),
            (f"{enjoy} {verb.gerund}", f"{enjoy} {g.pick((verb.base, f'to {verb.base}'))}"),
            (f"{opine} {clause}", f"{meet} {clause}"),
            (f"{opine} {clause}", f"{opine} that {verb.past} {other}"),
        )
    )
    rest = join(thing.text, end)
    return join(subject.text, good, rest), join(subject.text, bad, rest)


VALENCY = (
    _transitivity,
    _passive,
    _dative,
    _particle,
    _preposition,
    _complement,
)
