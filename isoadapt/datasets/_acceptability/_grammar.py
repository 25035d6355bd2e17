"""Phrases and sentence frames, drawn at random from one vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from isoadapt.datasets._acceptability._lexicon import Lexicon, Noun, Verb

T = TypeVar("T")


@dataclass(frozen=True)
class NounPhrase:
    """A noun phrase with what agrees with it."""

    text: str
    plural: bool
    pronoun: str  # he, she, it, they

    @property
    def object_pronoun(self) -> str:
        """The pronoun in the objective case.

        Returns
        -------
        str
        """
        return {"he": "him", "she": "her", "it": "it", "they": "them"}[self.pronoun]

    @property
    def reflexive(self) -> str:
        """The reflexive pronoun.

        Returns
        -------
        str
        """
        return "themselves" if self.pronoun == "they" else f"{self.object_pronoun}self"


def be(plural: bool, past: bool = False) -> str:
    """Give the third person of "be".

    Returns
    -------
    str
    """
    if past:
        return "were" if plural else "was"
    return "are" if plural else "is"


def have(plural: bool) -> str:
    """Give the third person of "have" in the present.

    Returns
    -------
    str
    """
    return "have" if plural else "has"


def a(words: str) -> str:
    """Put the indefinite article before `words`.

    Returns
    -------
    str
    """
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def join(*words: str) -> str:
    """Join the words that are not empty.

    Returns
    -------
    str
    """
    return " ".join(word for word in words if word)


def sentence(words: str) -> str:
    """Capitalise, and close with a full stop unless closed already.

    Returns
    -------
    str
    """
    return words[0].upper() + words[1:] + ("" if words.endswith("?") else ".")


class Grammar:
    """Draws phrases from a lexicon.

    Parameters
    ----------
    lexicon : Lexicon
        Where the content words come from.
    rng : random.Random
        Source of all choices.
    deep : bool
        Whether modifiers and frames are longer: relative clauses between subject and verb,
        clauses within clauses.
    """

    def __init__(self, lexicon: Lexicon, rng: Random, deep: bool) -> None:
        self.words = lexicon
        self.rng = rng
        self.deep = deep

    def pick(self, options: Sequence[T]) -> T:
        """Draw one of `options`.

        Returns
        -------
        T
        """
        return self.rng.choice(options)

    def two(self, options: Sequence[T]) -> tuple[T, T]:
        """Draw two different ones of `options`.

        Returns
        -------
        tuple[T, T]
        """
        first, second = self.rng.sample(options, 2)
        return first, second

    def chance(self, probability: float) -> bool:
        """Draw true with the given probability.

        Returns
        -------
        bool
        """
        return self.rng.random() < probability

    def flip(self, first: T, second: T) -> tuple[T, T]:
        """Give both in random order.

        Returns
        -------
        tuple[T, T]
        """
        return (first, second) if self.chance(0.5) else (second, first)

    def name(self, besides: str = "") -> NounPhrase:
        """Draw a name that does not occur in the words `besides`.

        Returns
        -------
        NounPhrase
        """
        pronoun, names = self.flip(("she", self.words.women), ("he", self.words.men))[0]
        return NounPhrase(
            self.pick([name for name in names if name not in besides.split()]), False, pronoun
        )

    def person(self, plural: bool | None = None, besides: str = "") -> NounPhrase:
        """Draw "the" with somebody's calling that does not occur in the words `besides`.

        Returns
        -------
        NounPhrase
        """
        plural = self.chance(0.5) if plural is None else plural
        nouns = [n for n in self.words.people if not {n.singular, n.plural} & {*besides.split()}]
        return NounPhrase(f"the {self.pick(nouns).form(plural)}", plural, "they")

    def somebody(self, besides: str = "") -> NounPhrase:
        """Draw a name or a person.

        Returns
        -------
        NounPhrase
        """
        return self.name(besides) if self.chance(0.5) else self.person(besides=besides)

    def look(self) -> str:
        """Draw an adjective of things, or nothing.

        Returns
        -------
        str
        """
        return self.pick(self.words.looks) if self.chance(0.4 if self.deep else 0.2) else ""

    def thing(self, plural: bool | None = None, noun: Noun | None = None) -> NounPhrase:
        """Draw "the" with a thing.

        Returns
        -------
        NounPhrase
        """
        plural = self.chance(0.4) if plural is None else plural
        noun = noun or self.pick(self.words.things)
        pronoun = "they" if plural else "it"
        return NounPhrase(join("the", self.look(), noun.form(plural)), plural, pronoun)

    def dealing(self, besides: str = "") -> tuple[Verb, NounPhrase]:
        """Draw a verb with a fitting object.

        Returns
        -------
        tuple[Verb, NounPhrase]
        """
        if self.chance(0.5):
            return self.pick(self.words.meet), self.somebody(besides)
        return self.pick(self.words.handle), self.thing()

    def place(self, besides: str = "") -> str:
        """Draw a phrase of place with a noun that does not occur in the words `besides`.

        Returns
        -------
        str
        """
        nouns = [noun for noun in self.words.places if noun not in besides.split()]
        return f"{self.pick(('in', 'near', 'behind'))} the {self.pick(nouns)}"

    def scene(self) -> str:
        """Draw a phrase of place or time that fits any sentence about the past, or nothing.

        Returns
        -------
        str
        """
        if self.chance(0.6 if self.deep else 0.75):
            return ""
        if self.chance(0.5):
            return self.place()
        return f"{self.pick(('before', 'after', 'during'))} the {self.pick(self.words.events)}"

    def modifier(self, besides: str, plural: bool) -> str:
        """Draw what may stand between a person and their verb, with nouns of the given number.

        Returns
        -------
        str
        """
        if self.chance(0.3 if self.deep else 0.5):
            return ""
        if not self.deep:
            return f"with {self.thing(plural).text}"
        other, verb = self.person(plural, besides), self.pick(self.words.meet)
        return self.pick(
            (
                f"who {verb.past} {other.text}",
                f"that {other.text} {verb.past}",
                f"with {self.thing(plural).text} {self.place()}",
                f"who {verb.past} {other.text} with {self.thing(plural).text}",
            )
        )

    def frame(self, besides: str) -> tuple[str, str]:
        """Draw what may stand before and after a statement without changing its acceptability.

        Returns
        -------
        tuple[str, str]
        """
        before = after = ""
        if self.chance(0.2 if self.deep else 0.1):
            opinion, inner = self.two(self.words.opine)
            before = f"{self.name(besides).text} {self.pick((opinion.past, opinion.third))} that"
            if self.deep and self.chance(0.3):
                before = join(before, self.person(besides=besides).text, inner.past, "that")
        if self.chance(0.15 if self.deep else 0.05):
            end = self.pick(self.words.act).past
            link = self.pick(("and", "but", "because") if self.deep else ("and", "but"))
            after = f", {link} {self.name(f'{besides} {before}').text} {end}"
        return before, after
