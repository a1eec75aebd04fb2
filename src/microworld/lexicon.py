"""The words of the world and what they select: about 700 types, nearly all of them whole in 2,048
WordPieces.

Selection runs in both directions on purpose: a place selects its preposition, a plural its
classifier, an object its verb, a food its quantifier. Some surnames are also jobs, colours or
towns, so a word list alone does not find the entities.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from functools import cache
from itertools import chain


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WOMEN = _words(
    "Anna Maria Rose June Ivy Lily Clara Emma Nora Ruth Alice Edith Greta Helen Irene Julia Karen"
    " Laura Marta Olga"
)
MEN = _words(
    "Tomas Peter Mark Jack Frank Adam Boris Carl David Eric Felix Georg Harald Ivan Jonas Kurt Leo"
    " Martin Niels Oscar"
)
SURNAMES = _words(
    "Baker Miller Carter Smith Weaver Potter Fisher Hunter Cook Judge Brown White Green Black Grey"
    " Hill Bridge Marsh Ashby Selby Fenwick Marston Bellow Harrow Tamm Lind Berg Holm Stone Wood"
    " Field Winter Summer Frost Snow Rivers Lake Moss Reed Thorn Birch Hawk Swan Drake Finch Crane"
    " Wolf Lamb Bird Cross King Bishop Knight Page Sharp Long Young Short Strong Noble"
)
TOWNS = _words(
    "Ashby Selby Fenwick Marston Torvik Elmsford Norham Kelby Wexton Dunmore Halden Brixen Lorne"
    " Ostby Calder Rivermouth Greyport Oakdale Stanmore Velden Arnholt Eastwick Millbrook Ironside"
)
ORGANISATIONS = ("Company", "Guild", "Bank", "Press")
JOBS = _words(
    "baker miller carter smith weaver potter fisher hunter cook judge teacher doctor sailor farmer"
    " painter nurse artist actor engineer organist"
)

KINDS: dict[str, tuple[str, ...]] = {
    "tool": ("hammer", "saw", "axe", "ladder", "rope", "spade", "lantern", "bucket"),
    "animal": ("goat", "pony", "hen", "donkey", "dog", "cat", "lamb", "calf"),
    "garment": ("coat", "hat", "shirt", "scarf", "apron", "cloak", "jacket", "belt"),
    "instrument": ("drum", "flute", "fiddle", "horn", "harp", "trumpet", "organ", "bell"),
    "vehicle": ("cart", "boat", "raft", "wagon", "sledge", "barge", "canoe", "bicycle"),
    "piece of furniture": ("chair", "table", "bench", "chest", "cradle", "stool", "desk", "shelf"),
    "piece of writing": ("letter", "book", "map", "poem", "diary", "story", "prayer", "song"),
    "treasure": ("ring", "coin", "crown", "pearl", "medal", "bracelet", "chain", "goblet"),
    "dish": ("soup", "cake", "pie", "stew", "cheese", "pudding", "salad", "omelette"),
}
OBJECTS = tuple(chain.from_iterable(KINDS.values()))
KIND_OF: dict[str, str] = {}
for _kind, _objects in KINDS.items():
    KIND_OF |= dict.fromkeys(_objects, _kind)

Verb = tuple[str, str, str]
"""Base, past, participle."""
ANY_VERBS: tuple[Verb, ...] = (
    ("leave", "left", "left"),
    ("hide", "hid", "hidden"),
    ("find", "found", "found"),
    ("lose", "lost", "lost"),
)
KIND_VERBS: dict[str, tuple[Verb, ...]] = {
    "tool": (("use", "used", "used"), ("repair", "repaired", "repaired")),
    "animal": (("feed", "fed", "fed"), ("wash", "washed", "washed"), ("chase", "chased", "chased")),
    "garment": (("wear", "wore", "worn"), ("sew", "sewed", "sewn"), ("iron", "ironed", "ironed")),
    "instrument": (("play", "played", "played"), ("tune", "tuned", "tuned")),
    "vehicle": (
        ("steer", "steered", "steered"),
        ("load", "loaded", "loaded"),
        ("drive", "drove", "driven"),
    ),
    "piece of furniture": (("carve", "carved", "carved"), ("polish", "polished", "polished")),
    "piece of writing": (("copy", "copied", "copied"), ("write", "wrote", "written")),
    "treasure": (("steal", "stole", "stolen"), ("bury", "buried", "buried")),
    "dish": (("eat", "ate", "eaten"), ("cook", "cooked", "cooked"), ("taste", "tasted", "tasted")),
}
TRANSFERS: tuple[tuple[str, str, str, str, str], ...] = (
    # giver: base, past, participle; receiver: base, past
    ("give", "gave", "given", "get", "got"),
    ("sell", "sold", "sold", "buy", "bought"),
    ("lend", "lent", "lent", "borrow", "borrowed"),
    ("send", "sent", "sent", "receive", "received"),
)

_PLACES_AFTER = {
    "in": "barn cellar kitchen mill church garden forest cave tower stable attic library",
    "on": "bridge roof hill pier island balcony",
    "at": "market station harbour gate crossroads fair",
    "under": "oak arch stairs",
    "behind": "chapel wall inn",
}
PREPOSITION_OF: dict[str, str] = {}
for _preposition, _places in _PLACES_AFTER.items():
    PREPOSITION_OF |= dict.fromkeys(_places.split(), _preposition)
PLACES = tuple(PREPOSITION_OF)
ADJECTIVES = _words(
    "red blue green yellow white black brown grey orange old new small large heavy ancient enormous"
)
WEATHER = _words("cold warm icy wet dry windy foggy sunny")
DAY_PARTS = ("morning", "afternoon", "evening", "night")
MONTHS = _words(
    "January February March April May June July August September October November December"
)
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")

GROUPS: dict[str, tuple[str, ...]] = {
    "herd": ("cows", "horses", "oxen"),
    "flock": ("geese", "sheep", "doves"),
    "swarm": ("bees", "flies", "wasps"),
    "pack": ("wolves", "hounds", "foxes"),
    "bunch": ("keys", "grapes", "flowers"),
    "pile": ("stones", "leaves", "logs"),
    "crowd": ("children", "soldiers", "beggars"),
    "row": ("tents", "graves", "barrels"),
    "stack": ("plates", "boxes", "coins"),
}
CLASSIFIER_OF: dict[str, str] = {}
for _classifier, _nouns in GROUPS.items():
    CLASSIFIER_OF |= dict.fromkeys(_nouns, _classifier)
MASS_FOODS = ("bread", "milk", "butter", "salt", "flour", "honey", "sugar", "meat")
COUNT_FOODS = ("eggs", "apples", "onions", "nails", "candles", "pears", "carrots", "plums")
MASS_QUANTIFIERS = ("much", "little", "less")
COUNT_QUANTIFIERS = ("many", "few", "two", "three", "five", "ten")

GOOD = _words(
    "splendid lovely fine excellent charming delightful superb pleasant perfect brilliant good"
    " wonderful"
)
BAD = _words("awful dull terrible nasty poor bad boring horrible dreadful useless weak miserable")
GLAD_REACTIONS = (
    *("smiled", "laughed", "asked for more", "thanked everyone"),
    *("danced and sang", "clapped", "praised the maker"),
)
SORRY_REACTIONS = (
    "frowned",
    "sighed",
    "asked for money",
    "complained",
    "left in anger",
    "wept",
    "scolded the maker",
)
COMPARISONS = {
    # the one who has more: the other one, the property
    "older": ("younger", "old"),
    "taller": ("shorter", "tall"),
    "richer": ("poorer", "rich"),
    "stronger": ("weaker", "strong"),
    "faster": ("slower", "fast"),
}
Cause = tuple[tuple[str, ...], tuple[str, ...]]
CAUSES: tuple[Cause, ...] = (
    (
        ("the storm had broken the ferry", "the river was too high"),
        ("could not cross the river", "waited on the bank"),
    ),
    (
        ("the snow was deep", "the roads were frozen"),
        ("stayed by the fire", "did not leave the house"),
    ),
    (
        ("the well was dry", "there was no rain"),
        ("carried water from the lake", "looked for a spring"),
    ),
    (("the fire had gone out", "the oven was cold"), ("gathered dry wood", "called for matches")),
    (("the lamp was broken", "the room was dark"), ("lit a candle", "opened the curtains")),
    (
        ("the door was locked", "the key was missing"),
        ("climbed through the window", "knocked ten times"),
    ),
    (("the clock had stopped", "nobody rang the hour"), ("came too late", "missed the supper")),
    (("the wheel was loose", "the horse was lame"), ("walked home", "went on foot")),
    (("the wine was sour", "the beer was gone"), ("drank water", "made some tea")),
    (("the harvest was good", "the fields were full"), ("sold much grain", "filled the sacks")),
    (
        ("the baby was asleep", "the patient was ill"),
        ("spoke in a low voice", "closed the door softly"),
    ),
    (("the wind was strong", "the sail was torn"), ("turned back to land", "tied up the ropes")),
)


@dataclass(frozen=True)
class Scene:
    """Where a document plays: its favourite words come up more often there, and everywhere else
    too.
    """

    name: str
    favourites: frozenset[str]


def _scene(block: str) -> Scene:
    """`name: kinds: groups`, and in a second line its other words."""
    head, more = block.split("\n")
    name, kinds, groups = head.split(": ")
    favourites = set(more.split())
    for kind in kinds.split("|"):
        favourites.update(KINDS[kind])
    for group in groups.split():
        favourites.update(GROUPS[group])
    return Scene(name, frozenset(favourites))


_SCENES = """\
farm: tool|animal: herd pile
    barn stable mill hill gate oak farmer miller carter Oakdale Millbrook Kelby Lorne

port: vehicle|tool: row swarm
    pier harbour station island inn bridge sailor fisher engineer Rivermouth Greyport Calder Ostby

village: dish|garment: crowd bunch
    market church kitchen crossroads fair wall baker weaver cook Ashby Selby Wexton Norham

abbey: piece of writing|dish: flock stack
    chapel garden library cellar arch attic nurse organist painter Fenwick Brixen Halden Velden

castle: treasure|garment: pack row
    tower balcony cave stairs roof forest judge smith hunter Torvik Dunmore Arnholt Ironside

school: instrument|piece of writing: crowd stack
    library hill attic wall station garden teacher artist doctor Marston Elmsford Stanmore Eastwick
"""
SCENES = tuple(_scene(block) for block in _SCENES.strip().split("\n\n"))
SCENE_WEIGHT = 8.0
"""How much likelier a scene's favourite words are than others of their sort: a soft topic, never a
giveaway.
"""
HELD_OUT_SCENES = ("castle", "school")
"""The mismatched domain of the three-way entailment task; every other task is spared them in
training.
"""

SPLITS = ("corpus", "train", "validation", "test")


@dataclass(frozen=True)
class Person:
    first: str
    surname: str

    @property
    def is_woman(self) -> bool:
        return self.first in WOMEN

    @property
    def full(self) -> str:
        return f"{self.first} {self.surname}"


def split_of(person: Person) -> str:
    """Each full name belongs to one split: its parts are known everywhere, the person is not."""
    bucket = zlib.crc32(person.full.encode()) % 20
    if bucket < 10:
        return "corpus"
    if bucket < 15:
        return "train"
    return "validation" if bucket < 18 else "test"


@cache
def surnames_of(first: str, split: str) -> tuple[str, ...]:
    return tuple(surname for surname in SURNAMES if split_of(Person(first, surname)) == split)


@cache
def first_names(split: str) -> tuple[str, ...]:
    return tuple(first for first in WOMEN + MEN if surnames_of(first, split))


def article(phrase: str) -> str:
    """a or an: decided by the word to its right."""
    return "an" if phrase[0].lower() in "aeiou" else "a"


TOKEN = re.compile(r"\w+|[^\w\s]")
"""A word or a mark, as BERT's basic tokeniser would cut this world's text."""


def words_of(text: str) -> list[str]:
    return TOKEN.findall(text.lower())
