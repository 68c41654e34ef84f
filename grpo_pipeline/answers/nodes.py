"""The parts an answer is made of once it has been read.

Plain frozen values: they hold no sympy object, so that reading is cheap and nothing is computed by it.
"""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Number:
    """A literal. `digits` counts significant digits if it was written with a decimal point, else 0."""

    value: Fraction
    digits: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, subscript and primes included: x, F_{n-1}, f'."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """One of pi, e, i, inf."""

    name: str


@dataclass(frozen=True, slots=True)
class Add:
    """A sum of terms."""

    terms: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Mul:
    """A product of factors."""

    factors: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Div:
    """A quotient."""

    top: "Node"
    bottom: "Node"


@dataclass(frozen=True, slots=True)
class Pow:
    """A power."""

    base: "Node"
    exponent: "Node"


@dataclass(frozen=True, slots=True)
class Call:
    """A function applied. Names are those of `numeric.FUNCTIONS`, or "opaque:f" for an unknown f.

    "pm" and "mp" mark a plus-minus and a minus-plus sign before their argument, "deg" a value in degrees,
    "percent" a value in percent.
    """

    name: str
    args: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class BigOp:
    """sum, prod, int or lim over `variable`. For lim, low is the point; for an open int, low is None."""

    kind: str
    variable: str
    low: "Node | None"
    high: "Node | None"
    body: "Node"


@dataclass(frozen=True, slots=True)
class Sequence:
    """Items in brackets: ( ) [ ] < > are ordered, { } is a set, also mixed as in [a, b)."""

    left: str
    right: str
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of entries."""

    rows: tuple[tuple["Node", ...], ...]


@dataclass(frozen=True, slots=True)
class SetOp:
    """A union, an intersection or a difference ("|", "&", "-") of sets."""

    op: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class NamedSet:
    """One of "R", "N", "Z", "Q", "C", "empty"."""

    name: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """a : b : c, ordered."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """operands[0] ops[0] operands[1] ops[1] ...; ops are = ~ < <= > >= != in."""

    operands: tuple["Node", ...]
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Items beside each other without brackets. `join` is "," or "or" or "and" (a comma counts as ",")."""

    items: tuple["Node", ...]
    join: str = ","


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words, already folded to lower case without articles and punctuation."""

    text: str


@dataclass(frozen=True, slots=True)
class Time:
    """A time of day in seconds; `shown` keeps the fields where they may also be a ratio (not 7:05)."""

    seconds: int
    shown: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Based:
    """Digits written in a base that a subscript names."""

    digits: str
    base: int


Node = (
    Number
    | Symbol
    | Constant
    | Add
    | Mul
    | Div
    | Pow
    | Call
    | BigOp
    | Sequence
    | Matrix
    | SetOp
    | NamedSet
    | Ratio
    | Relation
    | Listing
    | Words
    | Time
    | Based
)
