"""The sentences of generated word problems: how each arithmetic operation may be told.

A wording has a key, which a problem's ``meta`` keeps, so that whoever measures (or gives the embedded model
its habits) can tell "gives away" from "loses" without parsing English.
"""

from dataclasses import dataclass
from typing import Literal

Operator = Literal["+", "-", "*", "/"]


@dataclass(frozen=True)
class Wording:
    """One way to tell one operation.

    Attributes:
        key: Stable name, stored in ``meta``.
        operator: The operation the sentence means.
        sentence: Template; ``{who}`` is the person's name or pronoun, ``{n}`` the operand.
        operands: The values ``{n}`` may take.
    """

    key: str
    operator: Operator
    sentence: str
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Person:
    """A name and its pronoun."""

    name: str
    pronoun: str


SMALL = tuple(range(2, 10))

WORDINGS: tuple[Wording, ...] = (
    Wording("buy", "+", "{who} buys {n} more.", SMALL),
    Wording("find", "+", "{who} finds {n} more.", SMALL),
    Wording("receive", "+", "{who} gets {n} from a friend.", SMALL),
    Wording("give", "-", "{who} gives away {n}.", SMALL),
    Wording("lose", "-", "{who} loses {n}.", SMALL),
    Wording("sell", "-", "{who} sells {n}.", SMALL),
    Wording("times", "*", "{who} makes it {n} times as many.", (2, 3, 4)),
    Wording("double", "*", "{who} doubles them.", (2,)),
    Wording("triple", "*", "{who} triples them.", (3,)),
    Wording("share", "/", "{who} splits them into {n} equal bags and keeps one bag.", (2, 3, 4)),
    Wording("half", "/", "{who} keeps only half of them.", (2,)),
)

# When each event happens. Events follow each other in this order, from any place on (December to January).
# A solution's line begins with its event's time: a reader can tell which event it is about, and a small
# model need not count events, which it was found to learn far more slowly than all the rest.
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)

PEOPLE = tuple(
    [Person(name, "she") for name in ("Ada", "Emma", "Grace", "Lena", "Maria", "Nora", "Ruth", "Sofia")]
    + [Person(name, "he") for name in ("Ali", "Ben", "Carl", "David", "Ivan", "Omar", "Paul", "Tom")]
)

THINGS = (
    *("apples", "beads", "books", "cards", "coins", "cups", "eggs", "keys"),
    *("lamps", "nuts", "pens", "plums", "rings", "shells", "stamps", "stones"),
)

OPENINGS = (
    "{name} has {n} {things}.",
    "{name} starts with {n} {things}.",
    "{name} owns {n} {things}.",
    "There are {n} {things} in {name}'s box.",
)

ASKS = (
    "How many {things} does {name} have now?",
    "How many {things} does {name} have in the end?",
    "Now how many {things} are there?",
)
