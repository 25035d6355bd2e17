"""The vocabularies of the training and the development split, which share no content word."""

from dataclasses import dataclass

_VOWELS = "aeiou"


@dataclass(frozen=True)
class Noun:
    """A countable noun."""

    singular: str
    plural: str

    def form(self, plural: bool) -> str:
        """Return the plural or the singular."""
        return self.plural if plural else self.singular


@dataclass(frozen=True)
class Verb:
    """A verb and its forms."""

    base: str
    past: str
    participle: str
    gerund: str

    @property
    def third(self) -> str:
        """The third person singular of the present tense."""
        return add_s(self.base)

    def present(self, plural: bool) -> str:
        """Return the present tense in the third person."""
        return self.base if plural else self.third


def add_s(word: str) -> str:
    """Add the regular ending of a plural noun or of a verb in the third person singular."""
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ies"
    return word + "s"


def add_ed(word: str) -> str:
    """Add the regular ending of the past tense."""
    if word.endswith("e"):
        return word + "d"
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ied"
    return word + "ed"


def add_er(word: str) -> str:
    """Add the ending of the comparative."""
    if word.endswith("y"):
        return word[:-1] + "ier"
    return word + ("r" if word.endswith("e") else "er")


def add_est(word: str) -> str:
    """Add the ending of the superlative."""
    return add_er(word)[:-1] + "st"


def _add_ing(word: str) -> str:
    return (word[:-1] if word.endswith("e") and not word.endswith("ee") else word) + "ing"


def _nouns(entries: str) -> tuple[Noun, ...]:
    return tuple(Noun(word, add_s(word)) for word in entries.split())


def _verbs(entries: str) -> tuple[Verb, ...]:
    """Parse verbs separated by commas.

    An entry is the base of a regular verb, or base, past and participle, or these and the gerund.
    """
    verbs = []
    for entry in entries.split(","):
        base, *forms = entry.split()
        past, participle = forms[:2] or [add_ed(base)] * 2
        verbs.append(Verb(base, past, participle, forms[2] if forms[2:] else _add_ing(base)))
    return tuple(verbs)


def _phrases(entries: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in entries.split(","))


def _governed(entries: str) -> tuple[tuple[Verb, str, tuple[str, ...]], ...]:
    """Parse entries `verb right/wrong/wrong`, regular verbs with prepositions, between commas."""
    rows = []
    for entry in entries.split(","):
        verb, prepositions = entry.rsplit(maxsplit=1)
        right, *wrong = prepositions.split("/")
        rows.append((_verbs(verb)[0], right, tuple(wrong)))
    return tuple(rows)


@dataclass(frozen=True)
class Lexicon:
    """The content words of one split.

    Within its class, each verb can be combined with every subject and object, so that all
    sentences make sense.
    """

    women: tuple[str, ...]
    men: tuple[str, ...]
    people: tuple[Noun, ...]
    things: tuple[Noun, ...]
    masses: tuple[str, ...]  # uncountable nouns
    places: tuple[str, ...]
    events: tuple[str, ...]
    meet: tuple[Verb, ...]  # subject and object are persons; the object is required
    to_oneself: tuple[Verb, ...]  # as `meet`, also with a reflexive pronoun
    handle: tuple[Verb, ...]  # the object is a thing and is required
    strong: tuple[Verb, ...]  # as `handle`, with a participle that differs from the past tense
    acquire: tuple[Verb, ...]  # the object is one of `masses`
    act: tuple[Verb, ...]  # intransitive, without a passive
    opine: tuple[Verb, ...]  # takes a that-clause, out of which questions can be formed
    want: tuple[Verb, ...]  # takes an infinitive, never a gerund
    enjoy: tuple[Verb, ...]  # takes a gerund, never an infinitive
    give: tuple[Verb, ...]  # takes two objects
    donate: tuple[Verb, ...]  # takes an object and "to", never two objects
    particle: tuple[tuple[Verb, str], ...]
    governed: tuple[tuple[Verb, str, tuple[str, ...]], ...]  # verb, right and wrong prepositions
    short_traits: tuple[str, ...]  # adjectives for people, compared with -er
    long_traits: tuple[str, ...]  # adjectives for people, compared with "more"
    looks: tuple[str, ...]  # adjectives for things
    manners: tuple[str, ...]  # adverbs of manner
    past_times: tuple[str, ...]
    future_times: tuple[str, ...]


TRAIN = Lexicon(
    women=_phrases("Mary, Anna, Julia, Sarah, Emma, Laura, Helen, Alice, Clara, Nina, Rosa, Diana"),
    men=_phrases("Tom, Peter, David, Paul, Martin, Simon, Oscar, Henry, Felix, Adam, Victor, Hugo"),
    people=_nouns(
        "teacher doctor farmer singer lawyer sailor baker student nurse tourist dancer neighbour "
        "actor engineer clerk guard painter hunter merchant tailor detective swimmer manager "
        "dentist surgeon musician comedian director tenant explorer"
    ),
    things=_nouns(
        "clock chair bicycle lamp guitar boat mirror basket bottle piano camera trunk candle "
        "helmet drum bracelet hammer wagon trophy telescope teapot watch ribbon bench engine album"
    ),
    masses=_phrases("furniture, luggage, bread, cheese"),
    places=_phrases("garden, kitchen, station, office, school, market, cellar, village"),
    events=_phrases("meeting, concert, lesson, storm, party"),
    meet=_verbs(
        "praise, greet, thank, blame, invite, scold, accuse, flatter, deceive, tease, admire, "
        "confuse, congratulate, reward, punish"
    ),
    to_oneself=_verbs("praise, blame, flatter, deceive, hurt hurt hurt"),
    handle=_verbs(
        "repair, examine, carry, buy bought bought, polish, sell sold sold, decorate, deliver, "
        "fix, collect, purchase"
    ),
    strong=_verbs("steal stole stolen, break broke broken, take took taken, draw drew drawn"),
    acquire=_verbs("buy bought bought, sell sold sold, order, carry"),
    act=_verbs(
        "sneeze, arrive, sleep slept slept, smile, faint, tremble, shiver, yawn, laugh, vanish, "
        "fall fell fallen, grin grinned grinned grinning, wink"
    ),
    opine=_verbs("say said said, think thought thought, claim, declare"),
    want=_verbs("decide, hope, refuse, promise, want, wish, fail"),
    enjoy=_verbs("enjoy, finish, avoid, keep kept kept, deny, recommend"),
    give=_verbs("give gave given, show showed shown, hand"),
    donate=_verbs("donate, describe, reveal"),
    particle=tuple(
        zip(
            _verbs("pick, put put put putting, give gave given, hand"),
            _phrases("up, down, away, over"),
            strict=True,
        )
    ),
    governed=_governed(
        "rely on/at/of/to, wait for/of, listen to/of/at, look at/of, laugh at/of/to, "
        "dream of/at/to, worry about/of/at, respond to/of/at, hope for/of/at, refer to/of/at"
    ),
    short_traits=_phrases("tall, young, kind, rich, strong, brave, fast, bold, quiet"),
    long_traits=_phrases("careful, generous, ambitious, patient, popular, anxious, helpful"),
    looks=_phrases("heavy, cheap, small, dusty, green, strange, red, rusty, beautiful"),
    manners=_phrases("carefully, quietly, slowly, suddenly, happily, silently, angrily"),
    past_times=_phrases("yesterday, last week, two days ago"),
    future_times=_phrases("tomorrow, next week, two days from now"),
)

DEV = Lexicon(
    women=_phrases("Sophie, Ruth, Olivia, Hannah, Lucy, Karen, Susan, Linda, Carol, Judith, Irene"),
    men=_phrases("John, George, Daniel, Robert, Kevin, Andrew, Walter, Edward, Brian, Leo, Samuel"),
    people=_nouns(
        "pilot judge waiter writer driver soldier artist chef professor banker reporter gardener "
        "plumber librarian customer scientist mayor architect"
    ),
    things=_nouns(
        "table violin ladder vase bucket suitcase blanket kettle desk statue lantern barrel"
    ),
    masses=_phrases("equipment, rice, jewellery, pottery"),
    places=_phrases("museum, hotel, church, harbour, theatre, factory, park, castle"),
    events=_phrases("wedding, dinner, trial, ceremony, flood"),
    meet=_verbs(
        "ignore, contact, insult, rescue, welcome, mock, comfort, support, dismiss, embarrass"
    ),
    to_oneself=_verbs("insult, mock, comfort, defend, introduce"),
    handle=_verbs("lift, borrow, inspect, photograph, destroy, measure"),
    strong=_verbs("choose chose chosen, throw threw thrown, shake shook shaken, see saw seen"),
    acquire=_verbs("find found found, lose lost lost, borrow, store"),
    act=_verbs("cough, wince, hesitate, snore, blush, stumble, giggle, frown, kneel knelt knelt"),
    opine=_verbs("believe, assume, suspect"),
    want=_verbs("agree, plan planned planned planning, pretend, manage, offer"),
    enjoy=_verbs("postpone, consider, imagine, practise"),
    give=_verbs("send sent sent, lend lent lent, offer"),
    donate=_verbs("mention, contribute, transfer transferred transferred transferring"),
    particle=tuple(
        zip(
            _verbs("knock, push, bring brought brought, pull"),
            _phrases("over, away, back, out"),
            strict=True,
        )
    ),
    governed=_governed(
        "depend on/of/at/to, apologise to/of/at, stare at/of/to, object to/of/at, care for/of/at, "
        "approve of/at/to, agree with/of/at, concentrate on/of/to"
    ),
    short_traits=_phrases("old, short, poor, weak, smart, quick"),
    long_traits=_phrases("intelligent, talented, reliable, famous, arrogant"),
    looks=_phrases("large, wooden, expensive, antique, yellow, fragile"),
    manners=_phrases("gently, eagerly, secretly, reluctantly, hastily"),
    past_times=_phrases("last month, a year ago, last summer"),
    future_times=_phrases("next month, a year from now, next summer"),
)
