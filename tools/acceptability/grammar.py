"""Random phrases and sentence frames from the vocabulary of one split."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from tools.acceptability.lexicon import Lexicon, Noun, Verb

T = TypeVar("T")


@dataclass(frozen=True)
class NounPhrase:
    """A noun phrase with its number and pronoun."""

    text: str
    plural: bool
    pronoun: str  # he, she, it, they

    @property
    def object_pronoun(self) -> str:
        """The pronoun in the objective case, such as "him"."""
        return {"he": "him", "she": "her", "it": "it", "they": "them"}[self.pronoun]

    @property
    def reflexive(self) -> str:
        """The reflexive pronoun, such as "himself"."""
        return "themselves" if self.pronoun == "they" else f"{self.object_pronoun}self"


def be(plural: bool, past: bool = False) -> str:
    """Return the third person of "be"."""
    if past:
        return "were" if plural else "was"
    return "are" if plural else "is"


def have(plural: bool) -> str:
    """Return the third person of "have" in the present tense."""
    return "have" if plural else "has"


def a(words: str) -> str:
    """Prepend "a" or "an" to `words`."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def join(*words: str) -> str:
    """Join the words that are not empty with spaces."""
    return " ".join(word for word in words if word)


def sentence(words: str) -> str:
    """Capitalise the first word, and add a full stop unless there is a question mark."""
    return words[0].upper() + words[1:] + ("" if words.endswith("?") else ".")


class Grammar:
    """Draws random phrases from a lexicon.

    With `deep`, sentences are longer: there are relative clauses between subject and verb, and
    clauses inside clauses.
    """

    def __init__(self, lexicon: Lexicon, rng: Random, deep: bool) -> None:
        self.words = lexicon
        self.rng = rng
        self.deep = deep

    def pick(self, options: Sequence[T]) -> T:
        """Draw one element of `options`."""
        return self.rng.choice(options)

    def pick_two(self, options: Sequence[T]) -> tuple[T, T]:
        """Draw two different elements of `options`."""
        first, second = self.rng.sample(options, 2)
        return first, second

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.rng.random() < probability

    def shuffled(self, first: T, second: T) -> tuple[T, T]:
        """Return both arguments in random order."""
        return (first, second) if self.chance(0.5) else (second, first)

    def name(self, exclude: str = "") -> NounPhrase:
        """Draw a name that is not among the words of `exclude`."""
        pronoun, names = self.shuffled(("she", self.words.women), ("he", self.words.men))[0]
        return NounPhrase(
            self.pick([name for name in names if name not in exclude.split()]), False, pronoun
        )

    def person(self, plural: bool | None = None, exclude: str = "") -> NounPhrase:
        """Draw "the" and a noun for a person that is not among the words of `exclude`."""
        plural = self.chance(0.5) if plural is None else plural
        nouns = [n for n in self.words.people if not {n.singular, n.plural} & {*exclude.split()}]
        return NounPhrase(f"the {self.pick(nouns).form(plural)}", plural, "they")

    def somebody(self, exclude: str = "") -> NounPhrase:
        """Draw a name or a noun for a person, not among the words of `exclude`."""
        return self.name(exclude) if self.chance(0.5) else self.person(exclude=exclude)

    def look(self) -> str:
        """Draw an adjective for things, or an empty string."""
        return self.pick(self.words.looks) if self.chance(0.4 if self.deep else 0.2) else ""

    def thing(self, plural: bool | None = None, noun: Noun | None = None) -> NounPhrase:
        """Draw "the" and a noun for a thing, sometimes with an adjective."""
        plural = self.chance(0.4) if plural is None else plural
        noun = noun or self.pick(self.words.things)
        pronoun = "they" if plural else "it"
        return NounPhrase(join("the", self.look(), noun.form(plural)), plural, pronoun)

    def verb_and_object(self, exclude: str = "") -> tuple[Verb, NounPhrase]:
        """Draw a transitive verb with a suitable object."""
        if self.chance(0.5):
            return self.pick(self.words.meet), self.somebody(exclude)
        return self.pick(self.words.handle), self.thing()

    def place(self, exclude: str = "") -> str:
        """Draw a phrase of place whose noun is not among the words of `exclude`."""
        nouns = [noun for noun in self.words.places if noun not in exclude.split()]
        return f"{self.pick(('in', 'near', 'behind'))} the {self.pick(nouns)}"

    def adjunct(self) -> str:
        """Draw a phrase of place or time for a sentence in the past, or an empty string."""
        if self.chance(0.6 if self.deep else 0.75):
            return ""
        if self.chance(0.5):
            return self.place()
        return f"{self.pick(('before', 'after', 'during'))} the {self.pick(self.words.events)}"

    def modifier(self, exclude: str, plural: bool) -> str:
        """Draw a phrase between a person and the verb, with plural or singular nouns, or ''."""
        if self.chance(0.3 if self.deep else 0.5):
            return ""
        if not self.deep:
            return f"with {self.thing(plural).text}"
        other, verb = self.person(plural, exclude), self.pick(self.words.meet)
        return self.pick(
            (
                f"who {verb.past} {other.text}",
                f"that {other.text} {verb.past}",
                f"with {self.thing(plural).text} {self.place()}",
                f"who {verb.past} {other.text} with {self.thing(plural).text}",
            )
        )

    def frame(self, exclude: str) -> tuple[str, str]:
        """Draw words to put before and after a statement, which do not change its acceptability."""
        before = after = ""
        if self.chance(0.2 if self.deep else 0.1):
            opinion, inner = self.pick_two(self.words.opine)
            before = f"{self.name(exclude).text} {self.pick((opinion.past, opinion.third))} that"
            if self.deep and self.chance(0.3):
                before = join(before, self.person(exclude=exclude).text, inner.past, "that")
        if self.chance(0.15 if self.deep else 0.05):
            end = self.pick(self.words.act).past
            link = self.pick(("and", "but", "because") if self.deep else ("and", "but"))
            after = f", {link} {self.name(f'{exclude} {before}').text} {end}"
        return before, after
