"""Phenomena of agreement and word forms, one function each.

A function draws an acceptable sentence and its unacceptable counterpart. Its docstring is an
example, in which the asterisk marks the unacceptable variant.
"""

from tools.acceptability.grammar import Grammar, a, be, have, join
from tools.acceptability.lexicon import add_ed, add_er, add_est


def _subject_verb_agreement(g: Grammar) -> tuple[str, str]:
    """The doctor with the clocks is/*are tall."""
    plural = g.chance(0.5)
    if g.chance(0.5):
        start = "they" if plural else g.pick(("he", "she"))
    else:
        subject = g.person(plural).text
        start = join(subject, g.modifier(subject, plural=plural == g.chance(0.4)))
    verb, strong = g.pick(g.words.act), g.pick(g.words.strong)
    agree, rest = g.pick(
        (
            (verb.present, g.adjunct()),
            (be, g.pick(g.words.short_traits + g.words.long_traits)),
            (have, f"{strong.participle} {g.thing().text}"),
        )
    )
    return join(start, agree(plural), rest), join(start, agree(not plural), rest)


def _determiner_noun_agreement(g: Grammar) -> tuple[str, str]:
    """Tom repaired these clocks/*clock."""
    plural, noun, verb = g.chance(0.5), g.pick(g.words.things), g.pick(g.words.handle)
    many = ("these", "those", "two", "several", "both", "many of these", "three of the")
    determiner = g.pick(many if plural else ("this", "that", "every", "each", "one"))
    start, end = f"{g.somebody().text} {verb.past} {determiner}", g.adjunct()
    look = g.look()
    return (
        join(start, look, noun.form(plural), end),
        join(start, look, noun.form(not plural), end),
    )


def _countability(g: Grammar) -> tuple[str, str]:
    """Tom did not buy much/*many furniture."""
    verb, mass = g.pick(g.words.acquire), g.pick(g.words.masses)
    things = g.pick(g.words.things).plural
    who, end = g.somebody().text, g.adjunct()
    start = f"{who} did not {verb.base}"
    pairs = (
        (f"{start} much {mass}", f"{start} many {mass}"),
        (f"{start} many {things}", f"{start} much {things}"),
        (f"{who} {verb.past} some {mass}", f"{who} {verb.past} several {mass}"),
        (f"{who} {verb.past} too much {mass}", f"{who} {verb.past} too many {mass}"),
        (f"{who} {verb.past} too many {things}", f"{who} {verb.past} too much {things}"),
        (f"{who} {verb.past} a little {mass}", f"{who} {verb.past} a few {mass}"),
    )
    good, bad = g.pick(pairs)
    return join(good, end), join(bad, end)


def _pronoun_case(g: Grammar) -> tuple[str, str]:
    """He/*him thanked the doctor."""
    subject, verb = g.person(), g.pick(g.words.meet)
    pronoun = g.name() if g.chance(0.6) else g.person(True)
    nominative, objective = pronoun.pronoun, pronoun.object_pronoun
    end, other = g.adjunct(), g.person(exclude=subject.text).text
    templates = (
        ("{} " + f"{verb.past} {subject.text}", True),
        (f"{subject.text} {verb.past} " + "{}", False),
        (f"{subject.text} {verb.past} {other} and " + "{}", False),
        (f"{subject.text} {verb.past} {other} after " + "{} " + g.pick(g.words.act).past, True),
        (f"{subject.text} {g.pick(g.words.act).past} near " + "{}", False),
    )
    template, is_subject = g.pick(templates)
    good, bad = (nominative, objective) if is_subject else (objective, nominative)
    return join(template.format(good), end), join(template.format(bad), end)


def _reflexive_binding(g: Grammar) -> tuple[str, str]:
    """Mary hurt herself/*himself."""
    verb, end = g.pick(g.words.to_oneself).past, g.adjunct()
    subject = g.name() if g.chance(0.6) else g.person(True)
    who, reflexive = subject.text, subject.reflexive
    if g.chance(0.5):  # without an antecedent
        bad = g.pick((f"{reflexive} {verb} {who}", f"{who} {verb} that {reflexive}"))
        return join(who, verb, reflexive, end), join(bad, end)
    other = g.pick([form for form in ("himself", "herself", "themselves") if form != reflexive])
    if g.deep and g.chance(0.3):
        comma = "" if subject.plural else ","
        who = f"{who}{comma} who {g.pick(g.words.meet).past} {g.name(who).text}{comma}"
    return join(who, verb, reflexive, end), join(who, verb, other, end)


def _irregular_form(g: Grammar) -> tuple[str, str]:
    """Tom has stolen/*stole the clock."""
    verb, subject, thing = g.pick(g.words.strong), g.name(), g.thing()
    end = g.adjunct()
    regular = add_ed(verb.base)
    start, good, bad, rest = g.pick(
        (
            (f"{subject.text} has", verb.participle, verb.past, thing.text),
            (subject.text, verb.past, verb.participle, thing.text),
            (subject.text, verb.past, regular, thing.text),
            (f"{subject.text} had never", verb.participle, verb.past, thing.text),
            (
                join(thing.text, be(thing.plural, past=True)),
                verb.participle,
                g.pick((verb.past, regular)),
                f"by {subject.text}",
            ),
        )
    )
    return join(start, good, rest, end), join(start, bad, rest, end)


def _tense(g: Grammar) -> tuple[str, str]:
    """Tom repaired the clock yesterday/*tomorrow."""
    verb, thing = g.pick(g.words.handle + g.words.strong), g.thing().text
    past, future = g.pick(g.words.past_times), g.pick(g.words.future_times)
    subject = g.somebody().text
    if g.deep:
        thing = join(thing, g.place())
    forms = (
        (verb.past, past, future),
        (g.pick((f"will {verb.base}", f"will not {verb.base}")), future, past),
        (f"did not {verb.base}", past, future),
    )
    form, good, bad = g.pick(forms)
    if g.chance(0.3):
        return f"{good} {subject} {form} {thing}", f"{bad} {subject} {form} {thing}"
    return f"{subject} {form} {thing} {good}", f"{subject} {form} {thing} {bad}"


def _there_insertion(g: Grammar) -> tuple[str, str]:
    """There is a/*every clock in the garden."""
    noun, place, past = g.pick(g.words.things), g.place(), g.chance(0.5)
    if g.chance(0.5):
        place = join(place, g.place(place)) if g.deep else place
        plural, look = g.chance(0.5), g.look()
        good, bad = be(plural, past), be(not plural, past)
        number = g.pick(("two", "three", "several", "some"))
        some = join(number, look, noun.plural) if plural else a(join(look, noun.singular))
        if g.deep and g.chance(0.5):
            good, bad = ("seem", "seems") if plural else ("seems", "seem")
            return f"there {good} to be {some} {place}", f"there {bad} to be {some} {place}"
        return f"there {good} {some} {place}", f"there {bad} {some} {place}"
    look = g.look()
    weak, strong, kind = g.pick(
        (
            (a(look or noun.singular).split()[0], g.pick(("every", "each")), noun.singular),
            (g.pick(("two", "many", "no", "some")), g.pick(("all", "both")), noun.plural),
        )
    )
    start = f"there {be(kind == noun.plural, past)}"
    return join(start, weak, look, kind, place), join(start, strong, look, kind, place)


def _comparison(g: Grammar) -> tuple[str, str]:
    """The doctor is taller/*more taller than Tom."""
    subject, other = g.person(), g.name()
    short, long = g.pick(g.words.short_traits), g.pick(g.words.long_traits)
    rival = other.text
    if g.deep and g.chance(0.5):
        rival = f"{g.person(exclude=subject.text).text} near {rival}"
    if g.chance(0.25):
        start = f"{other.text} {be(False)} the"
        end = f"{g.pick(g.words.people).singular} in the {g.pick(g.words.places)}"
        good, bad = g.pick(
            (
                (add_est(short), f"most {add_est(short)}"),
                (f"most {long}", add_est(long)),
            )
        )
        return join(start, good, end), join(start, bad, end)
    good, bad = g.pick(
        (
            (f"{add_er(short)} than", f"more {add_er(short)} than"),
            (f"{add_er(short)} than", f"{add_er(short)} as"),
            (f"{add_er(short)} than", f"{short} than"),
            (f"as {short} as", f"as {add_er(short)} as"),
            (f"as {long} as", f"as {long} than"),
            (f"more {long} than", f"{add_er(long)} than"),
            (f"more {long} than", f"more {long} as"),
            (f"more {long} than", f"{long} than"),
        )
    )
    start = f"{subject.text} {be(subject.plural)}"
    return join(start, good, rival), join(start, bad, rival)


MORPHOLOGY = (
    _subject_verb_agreement,
    _determiner_noun_agreement,
    _countability,
    _pronoun_case,
    _reflexive_binding,
    _irregular_form,
    _tense,
    _there_insertion,
    _comparison,
)
