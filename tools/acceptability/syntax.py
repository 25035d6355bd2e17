"""Phenomena of word order and dependencies, one function each.

A function draws an acceptable sentence and its unacceptable counterpart. Its docstring is an
example, in which the asterisk marks the unacceptable variant.
"""

from tools.acceptability.grammar import Grammar, a, be, have, join


def _negative_polarity(g: Grammar) -> tuple[str, str]:
    """No/*every doctor has ever sneezed."""
    person, name, act = g.person(False), g.name(), g.pick(g.words.act)
    noun, verb = person.text.removeprefix("the "), g.pick(g.words.handle)
    things, strong = g.pick(g.words.things).plural, g.pick(g.words.strong)
    some = g.pick(("every", "the"))
    if g.deep and g.chance(0.4):
        other = g.person(exclude=person.text).text.removeprefix("the ")
        inner = f"who {g.pick(g.words.meet).past}"
        end = f"has ever {g.pick((act.participle, f'{strong.participle} any {things}'))}"
        return (
            f"no {noun} {inner} the {other} {end}",
            f"the {noun} {inner} no {other} {end}",
        )
    pairs = (
        (f"no {noun} has ever {act.participle}", f"{some} {noun} has ever {act.participle}"),
        (
            f"{name.text} has not {verb.participle} any {things}",
            f"{name.text} has {verb.participle} any {things}",
        ),
        (f"nobody {verb.past} any {things} at all", f"everybody {verb.past} any {things} at all"),
        (
            f"{name.text} never {verb.past} any {things}",
            f"{name.text} often {verb.past} any {things}",
        ),
        (f"no {noun} {act.past} at all", f"{some} {noun} {act.past} at all"),
    )
    good, bad = g.pick(pairs)
    end = g.adjunct()
    return join(good, end), join(bad, end)


def _filled_gap(g: Grammar) -> tuple[str, str]:
    """Who did Tom praise (*the doctor)?"""
    subject, end = g.somebody(), g.adjunct()
    start = f"did {subject.text}"
    if g.chance(0.7 if g.deep else 0.3):
        inner = g.name(subject.text)
        start = f"{start} {g.pick(g.words.opine).base} that {inner.text}"
        meet, handle = g.pick(g.words.meet).past, g.pick(g.words.handle).past
    else:
        meet, handle = g.pick(g.words.meet).base, g.pick(g.words.handle).base
    if g.chance(0.5):
        filler = g.person(exclude=start).text
        return join("who", start, meet, end) + "?", join("who", start, meet, filler, end) + "?"
    asked, other = g.pick_two(g.words.things)
    start = f"which {asked.form(g.chance(0.5))} {start} {handle}"
    return join(start, end) + "?", join(start, g.thing(noun=other).text, end) + "?"


def _island(g: Grammar) -> tuple[str, str]:
    """Which clock did Tom say that/*smile because Mary repaired?"""
    subject = g.somebody()
    other, act, opine = g.somebody(subject.text).text, g.pick(g.words.act), g.pick(g.words.opine)
    asked, noun = g.pick_two(g.words.things)
    verb, thing = g.pick(g.words.handle), g.thing(noun=noun).text
    start = f"which {asked.form(g.chance(0.5))} did {subject.text}"
    link = g.pick(("because", "after", "before", "although"))
    pairs = (
        (
            f"{start} {opine.base} that {other} {verb.past}?",
            f"{start} {act.base} {link} {other} {verb.past}?",
        ),
        (f"{start} {verb.base} near {thing}?", f"{start} {verb.base} and {thing}?"),
        (
            f"{start} {opine.base} that {other} {verb.past}?",
            f"{start} {g.pick(g.words.meet).base} {other} who {verb.past}?",
        ),
    )
    return g.pick(pairs)


def _tag_question(g: Grammar) -> tuple[str, str]:
    """Mary is smiling, isn't she/*he?"""
    subject = g.name() if g.chance(0.6) else g.person(True)
    plural, act = subject.plural, g.pick(g.words.act)
    auxiliary, rest = g.pick(
        (
            (be(plural), act.gerund),
            (be(plural, True), act.gerund),
            (have(plural), act.participle),
            ("can", f"{g.pick(g.words.handle).base} {g.thing().text}"),
            ("will", f"{g.pick(g.words.handle).base} {g.thing().text}"),
        )
    )
    negative = {"can": "can't", "will": "won't"}.get(auxiliary, f"{auxiliary}n't")
    others = [n for n in ("isn't", "hasn't", "don't", "can't", "won't") if n != negative]
    start = subject.text
    if g.deep and g.chance(0.4):
        comma = "" if plural else ","
        start = f"{start}{comma} who {g.pick(g.words.meet).past} {g.somebody(start).text}{comma}"
    wrong = g.pick([pronoun for pronoun in ("he", "she") if pronoun != subject.pronoun])
    statement = f"{start} {auxiliary} {rest}, "
    good = f"{statement}{negative} {subject.pronoun}?"
    if g.chance(0.5):
        return good, f"{statement}{g.pick((f'{subject.pronoun} {negative}', negative))}?"
    if g.chance(0.5):
        return good, f"{statement}{negative} {wrong}?"
    return good, f"{statement}{g.pick(others)} {subject.pronoun}?"


def _adverb_placement(g: Grammar) -> tuple[str, str]:
    """Tom slowly repaired/*repaired slowly the clock."""
    subject, adverb = g.somebody(), g.pick(g.words.manners)
    verb, thing = g.verb_and_object(subject.text)
    end = g.adjunct()
    form = g.pick((verb.past, verb.past, f"will {verb.base}"))
    bad = join(subject.text, form, adverb, thing.text, end)
    if g.deep and g.chance(0.5):
        noun = thing.text.split()
        if len(noun) > 1 and g.chance(0.5):
            bad = join(subject.text, form, noun[0], adverb, *noun[1:], end)
    if g.chance(0.5):
        return join(subject.text, form, thing.text, adverb, end), bad
    if " " in form:
        return join(subject.text, "will", adverb, verb.base, thing.text, end), bad
    return join(subject.text, adverb, form, thing.text, end), bad


def _question_order(g: Grammar) -> tuple[str, str]:
    """What is Tom/*Tom is repairing?"""
    subject = g.somebody()
    who, plural, act = subject.text, subject.plural, g.pick(g.words.act)
    verb, thing = g.pick(g.words.handle), g.thing().text
    asked = g.pick(("why", "when", "where"))
    trait = g.pick(g.words.short_traits + g.words.long_traits)
    if g.deep and g.chance(0.3):
        subject = g.person(False)
        inner = f"{subject.text} who"
        return (
            f"is {inner} is {act.gerund} {trait}?",
            f"is {inner} {act.gerund} is {trait}?",
        )
    is_, has = be(plural), have(plural)
    return g.pick(
        (
            (f"what {is_} {who} {verb.gerund}?", f"what {who} {is_} {verb.gerund}?"),
            (f"{asked} did {who} {act.base}?", f"{asked} {who} {act.past}?"),
            (f"{asked} did {who} {act.base}?", f"{asked} did {who} {act.past}?"),
            (f"{has} {who} {verb.participle} {thing}?", f"{has} {verb.participle} {who} {thing}?"),
            (f"{is_} {who} {trait}?", f"{is_} {trait} {who}?"),
        )
    )


def _noun_phrase_order(g: Grammar) -> tuple[str, str]:
    """Tom repaired the heavy clock/*clock heavy."""
    subject, verb, noun = g.somebody(), g.pick(g.words.handle), g.pick(g.words.things)
    look, end = g.pick(g.words.looks), g.adjunct()
    word, one, many = noun.form(g.chance(0.5)), noun.singular, noun.plural
    good, bad = g.pick(
        (
            (f"the {look} {word}", f"the {word} {look}"),
            (f"the very {look} {word}", f"the {look} very {word}"),
            (f"these two {look} {many}", f"two these {look} {many}"),
            (f"all the {look} {many}", f"the all {look} {many}"),
            (f"such {a(one)}", f"a such {one}"),
        )
    )
    start = f"{subject.text} {verb.past}"
    return join(start, good, end), join(start, bad, end)


def _verb_position(g: Grammar) -> tuple[str, str]:
    """The doctor will praise the nurse/*the nurse praise."""
    subject, end = g.person(), g.adjunct()
    verb, thing = g.verb_and_object(subject.text)
    who, what = subject.text, thing.text
    if g.chance(0.5):
        return join(who, verb.past, what, end), join(verb.past, who, what, end)
    auxiliary = g.pick(("did not", "will", "could not"))
    good = join(who, auxiliary, verb.base, what, end)
    return good, join(who, auxiliary, what, verb.base, end)


def _preposition_position(g: Grammar) -> tuple[str, str]:
    """Tom smiled in the garden/*the garden in."""
    subject, verb = g.somebody(), g.pick(g.words.act)
    where, _, place = g.pick((g.place(), f"after the {g.pick(g.words.events)}")).partition(" ")
    form = g.pick((verb.past, f"did not {verb.base}", f"will {verb.base}"))
    start = f"{subject.text} {form}"
    bad = g.pick((f"{place} {where}", f"the {where} {place.removeprefix('the ')}"))
    return f"{start} {where} {place}", f"{start} {bad}"


def _negation(g: Grammar) -> tuple[str, str]:
    """Tom does not sneeze/*sneezes not."""
    subject, act = g.somebody(), g.pick(g.words.act)
    verb, thing = g.verb_and_object(subject.text)
    who, is_, has = subject.text, be(subject.plural), have(subject.plural)
    adverb = f" {g.pick(g.words.manners)}" if g.deep and g.chance(0.5) else ""
    rest = join(thing.text, g.adjunct())
    return g.pick(
        (
            (f"{who} did not {verb.base} {rest}", f"{who} {verb.past} not {rest}"),
            (f"{who} did not{adverb} {act.base}", f"{who} not{adverb} {act.past}"),
            (
                f"{who} {has} not {verb.participle} {rest}",
                f"{who} not {has} {verb.participle} {rest}",
            ),
            (
                f"{who} {is_} not{adverb} {verb.gerund} {rest}",
                f"{who} not {is_}{adverb} {verb.gerund} {rest}",
            ),
            (
                f"{who} will not{adverb} {verb.base} {rest}",
                f"{who} will{adverb} {verb.base} not {rest}",
            ),
        )
    )


def _relative_clause(g: Grammar) -> tuple[str, str]:
    """The clock which/*who Tom repaired is heavy."""
    thing, verb = g.thing(), g.pick(g.words.handle)
    person, meet = g.person(), g.pick(g.words.meet)
    who = g.somebody(person.text)
    trait, end = g.pick(g.words.short_traits), g.pick(g.words.act).past
    look = f"{be(thing.plural, g.chance(0.5))} {g.pick(g.words.looks)}"
    gap = f"{who.text} {verb.past}"
    return g.pick(
        (
            (f"{thing.text} which {gap} {look}", f"{thing.text} who {gap} {look}"),
            (f"{thing.text} that {gap} {look}", f"{thing.text} what {gap} {look}"),
            (
                f"{person.text} who {meet.past} {who.text} {end}",
                f"{person.text} which {meet.past} {who.text} {end}",
            ),
            (
                f"{thing.text} that {gap} {look}",
                f"{thing.text} that {gap} {'them' if thing.plural else 'it'} {look}",
            ),
            (
                f"{person.text} who {who.text} {meet.past} {be(person.plural)} {trait}",
                f"{person.text} who {who.text} {meet.past} {person.object_pronoun} "
                f"{be(person.plural)} {trait}",
            ),
        )
    )


SYNTAX = (
    _negative_polarity,
    _filled_gap,
    _island,
    _tag_question,
    _adverb_placement,
    _question_order,
    _noun_phrase_order,
    _verb_position,
    _preposition_position,
    _negation,
    _relative_clause,
)
