"""From an answer string to what it means: one `Reading` with a node, or the reason why there is none."""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.grammar import Parser
from grpo_pipeline.answers.normalise import (
    TEXT_CLOSE,
    TEXT_OPEN,
    compact,
    fold_words,
    join_thousands,
    looks_like_code,
    tidy,
)
from grpo_pipeline.answers.tokens import Token, tokenise
from grpo_pipeline.answers.verdicts import Refused
from grpo_pipeline.answers.vocabulary import BASE_WORDS, FILLERS, UNITS, number_in_words


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer string means.

    Attributes:
        key: spelling for a comparison of strings.
        words: the same as lower-case words.
        nodes: the readings, most likely first; "1,234" has two (a number, a list). Empty if refused.
        refused: the reason why there is no node, "" if there is one.
    """

    key: str
    words: str
    nodes: tuple[n.Node, ...]
    refused: str


_ZERO_GROUP = re.compile(r",\s*0\d")  # 1,000 is no list of 1 and 0
_TIME = re.compile(
    r"(\d{1,2})(?::([0-5]\d))?(?::([0-5]\d))?\s*(?:([ap])\s*\.?\s*m\s*\.?)?(?:\s*(?:o'clock))?", re.IGNORECASE
)
_BASE = re.compile(r"(-?)\s*\(?\s*([0-9A-Fa-f ]+?)\s*\)?\s*_\s*\{?\s*\(?\s*(\d{1,2}|[a-z]+)\s*\)?\s*\}?", re.IGNORECASE)
_BASE_WORDS = re.compile(r"(-?)\s*([0-9A-Fa-f]+)\s*\(?\s*(?:in\s+)?base[\s-]*(\d{1,2}|[a-z]+)\s*\)?", re.IGNORECASE)
_CHOICE_ONLY = re.compile(r"\(?([A-J])\s*\)?\s*[.:)]?", re.IGNORECASE)
_CHOICE = re.compile(
    r"(?:(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)\s*(?:is\s*)?:?\s*)?(?:\(\s*([A-J])\s*\)|([A-J])\s*[.):]|([A-J])$)"
    r"\s*(.*)",
    re.DOTALL,
)
_CHOICE_GOES_ON = re.compile(r"(?:,|/|&|and\b|or\b|\+|-|\*|=|<|>|\\|\^|\()", re.IGNORECASE)
_PHRASES: dict[str, n.Node] = {
    **dict.fromkeys(
        ("all real numbers", "all reals", "real numbers", "all real", "any real number", "every real number",
         "all real values", "set of all real numbers", "set of real numbers", "reals"),
        n.NamedSet("R"),
    ),
    **dict.fromkeys(
        ("no solution", "no solutions", "no real solution", "no real solutions", "empty set",
         "there are no solutions",
         "there is no solution", "no such"),
        n.NamedSet("empty"),
    ),
    **dict.fromkeys(("infinity", "positive infinity", "+infinity", "infinite", "infty"), n.Constant("inf")),
    **dict.fromkeys(
        ("negative infinity", "minus infinity"), n.Mul((n.Number(Fraction(-1)), n.Constant("inf")))
    ),
    **dict.fromkeys(("does not exist", "dne", "undefined", "not defined"), n.Words("does not exist")),
}  # fmt: skip
_NO_VALUE = frozenset({"nan", "null", "n/a", "na", "unknown", "undefined value", "?", "idk"})
_LATEX_LEFT = re.compile(r"\\[A-Za-z]+")


@lru_cache(maxsize=8192)
def read(span: str) -> Reading:  # noqa: PLR0911 - one way out for each form
    """Read an answer string. It never raises: what it refuses, it says in `refused` (one of `REASONS`)."""
    if not span or span.isspace():
        return Reading("", "", (), "empty")
    if len(span) < 4_000 and looks_like_code(span):
        return Reading(span.strip(), "", (), "code")
    try:
        text = tidy(span)
        if not any(c.isalnum() or c in "\\∅" for c in text):
            return Reading(text, "", (), "empty" if not text else "unreadable")
        joined = join_thousands(text)
        words = fold_words(text)
        if words in _NO_VALUE:
            return Reading(compact(joined), words, (), "unreadable")
        nodes = [_node(joined)]
        if joined != text and "," in text and not _ZERO_GROUP.search(text):
            split = _node(text)
            if isinstance(split, n.Listing | n.Sequence):  # a comma inside an expression is no list
                nodes.append(split)
        return Reading(compact(joined), words, tuple(nodes), "")
    except Refused as refused:
        key = compact(join_thousands(text)) if refused.reason != "over_limit" or len(span) < 4_000 else span.strip()
        return Reading(key, fold_words(text) if len(key) < 4_000 else "", (), refused.reason)
    except RecursionError:
        return Reading(span.strip(), "", (), "over_limit")
    except Exception:  # noqa: BLE001 - a defect must not stop a run of millions; it is counted by its reason
        return Reading(span.strip(), "", (), "internal_error")


def _node(text: str) -> n.Node:
    plain = text.replace(TEXT_OPEN, " ").replace(TEXT_CLOSE, " ").strip()
    special = _special(plain)
    if special is not None:
        return special
    tokens = _strip_fillers(tokenise(text))
    if all(token.kind in ("word", "end", "sep", "scale") for token in tokens) or _is_prose(plain, tokens):
        return n.Words(fold_words(plain))
    return Parser(tokens).listing()


def _special(plain: str) -> n.Node | None:
    """Forms that are told by their shape as a whole: times, numbers in a base, phrases, numbers in words."""
    folded = fold_words(plain)
    if folded in _PHRASES:
        return _PHRASES[folded]
    if ":" in plain or plain[-1:] in "mM." or "clock" in plain:
        time = read_time(plain)
        if time is not None:
            return time
    if "_" in plain or "base" in plain:
        based = _read_base(plain)
        if based is not None:
            return based
    if (plain[:1].isalpha() and " " not in plain.strip()) or (plain[:1].isalpha() and len(plain) < 80):
        value = number_in_words(plain)
        if value is not None:
            return n.Number(Fraction(value))
    return None


def read_time(plain: str) -> n.Time | None:
    """13:03, 1:03 PM, 08:34:00 p.m., 3 PM.

    >>> read_time("1:03 PM").seconds == read_time("13:03").seconds
    True
    """
    match = _TIME.fullmatch(plain.strip())
    if match is None or (match[2] is None and match[4] is None):
        return None
    hour, minute, second = int(match[1]), int(match[2] or 0), int(match[3] or 0)
    if match[4]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (match[4].lower() == "p")
    if hour > 24:
        return None
    fields = [match[k] for k in (1, 2, 3) if match[k]]
    shown = () if any(field[0] == "0" for field in fields) else tuple(map(int, fields))
    return n.Time(3600 * hour + 60 * minute + second, shown)


def _read_base(plain: str) -> n.Based | None:
    match = _BASE.fullmatch(plain) or _BASE_WORDS.fullmatch(plain)
    if match is None:
        return None
    sign, written, name = match[1], match[2].replace(" ", ""), match[3].casefold()
    base = int(name) if name.isdecimal() else BASE_WORDS.get(name, 0)
    digits = written.upper().lstrip("0") or "0"
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits):
        return None
    if not written[0].isdigit() and base < 11:
        return None
    return n.Based(sign + digits, base)


def _strip_fillers(tokens: list[Token]) -> list[Token]:
    """Drop words and marks in front that say nothing about the value."""
    start = 0
    first = next((k for k, token in enumerate(tokens) if token.kind not in ("word", "sym")), 0)
    if 0 < first <= 6 and tokens[first].value == "=" and any(token.kind == "word" for token in tokens[:first]):
        return tokens[first + 1 :]  # "Area = 12"
    if any(token.kind not in ("word", "end") for token in tokens):
        while tokens[start].kind in ("word", "op"):
            token = tokens[start]
            folded = token.value.casefold().strip(":.")
            if (token.kind == "word" and (folded in FILLERS or token.value in UNITS)) or (
                token.kind == "op" and token.value in ("=", "~", ":", "->") and tokens[start + 1].kind != "end"
            ):
                start += 1
            else:
                break
    if tokens[start].value in ("negative", "minus") and tokens[start + 1].kind == "num":
        return [Token("op", "-", False), *tokens[start + 1 :]]
    return tokens[start:]


def _is_prose(plain: str, tokens: list[Token]) -> bool:
    """Words around no mathematics: "a circle", "June 20", "odd"."""
    if any(token.kind in ("op", "cmd", "func", "open") for token in tokens):
        return False
    words = sum(token.kind == "word" for token in tokens)
    if words and tokens[0].kind in ("word", "sym", "const"):
        return True
    bare = _LATEX_LEFT.sub("", plain)
    return len(tokens) > 2 and bare.isalpha() and len(bare) >= 3 and _vowel(bare) and (bare.islower() or bare.istitle())


def _vowel(text: str) -> bool:
    return any(c in "aeiouAEIOU" for c in text)


def choice_of(span: str) -> str | None:
    """The letter of a multiple-choice answer: C, (C), C., C) 42, (D) Alina, "The correct option is C"."""
    try:
        plain = tidy(span).replace(TEXT_OPEN, " ").replace(TEXT_CLOSE, " ").replace("*", "").strip()
    except Refused:
        return None
    match = _CHOICE_ONLY.fullmatch(plain)
    if match:
        return match[1].upper()
    match = re.fullmatch(r"\(?([A-J])\)?\s+is\s+(?:the\s+)?(?:correct|right|answer).*", plain)
    if match:
        return match[1]
    match = _CHOICE.fullmatch(plain)
    if match is None or _CHOICE_GOES_ON.match(match[4]):
        return None
    if re.search(r"\([A-J]\)", match[4]):
        return None
    return match[1] or match[2] or match[3]


def is_bare_choice(span: str) -> bool:
    """Whether a gold answer is one choice letter, whatever stands behind it: C, (E), (D) Alina."""
    plain = span.strip()
    return len(plain) < 200 and (
        re.fullmatch(r"(?:\\(?:text|textbf|mathrm|mathbf)\s*\{)?\s*\(?([A-J])\)?\s*[.:)]?\s*\}?", plain) is not None
        or re.fullmatch(r"(?:\\(?:text|textbf|mathrm|mathbf)\s*\{)?\s*\(([A-J])\)\s*\}?\s*\S.*", plain) is not None
    )
