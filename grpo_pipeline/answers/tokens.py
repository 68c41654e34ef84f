"""Cut a tidied answer into tokens.

A whitelist: a command or a character that is not named here makes the whole answer unreadable.
"""

import re
from dataclasses import dataclass

from grpo_pipeline.answers.normalise import NEW_ROW, TEXT_CLOSE, TEXT_OPEN
from grpo_pipeline.answers.verdicts import MAX_DIGITS, MAX_TOKENS, Refused
from grpo_pipeline.answers.vocabulary import (
    CURRENCY,
    DEGREE_WORDS,
    FUNCTIONS,
    PERCENT_WORDS,
    SCALES,
    SHORT_WORDS,
    UNITS,
    words,
)


@dataclass(frozen=True, slots=True)
class Token:
    """kind: num, sym, const, func, op, open, close, sep, word, cmd, set, end. `gap`: a space stood before."""

    kind: str
    value: str
    gap: bool


_MASTER = re.compile(
    rf"""(?P<space>\s+)
    |(?P<text>{TEXT_OPEN}[^{TEXT_CLOSE}]*{TEXT_CLOSE})
    |(?P<num>\d+\.(?!\d)|(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+(?![\w.]))?)
    |(?P<cmd>\\(?:[A-Za-z]+|.))
    |(?P<letters>[A-Za-z]{(2,)}(?=\.(?:\s|$))|[A-Za-z]+)(?:(?<=[A-Za-z]{{2}})\.(?=\s|$))?
    |(?P<op>\*\*|<=|>=|!=|==|=<|<>|->|=>|[-+*/^_=<>!'|%°&:{NEW_ROW}])
    |(?P<sep>[,;])
    |(?P<open>[(\[{{])|(?P<close>[)\]}}])
    |(?P<currency>[{CURRENCY}])
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)

_OPERATORS = {
    "cdot": "*", "times": "*", "ast": "*", "star": "*", "div": "/", "pm": "pm", "mp": "mp", "cup": "cup",
    "cap": "cap", "setminus": "minus", "backslash": "minus", "in": "in", "isin": "in", "le": "<=",
    "leq": "<=", "leqslant": "<=",
    "ge": ">=", "geq": ">=", "geqslant": ">=", "lt": "<", "gt": ">", "ne": "!=", "neq": "!=", "approx": "~",
    "simeq": "~", "cong": "~", "sim": "~", "doteq": "~", "equiv": "=", "colon": ":", "bmod": "mod",
    "mod": "mod",
    "to": "->", "rightarrow": "->", "prime": "'", "mid": "|", "vert": "|", "lvert": "|", "rvert": "|",
    "|": "|", "bigcup": "cup",
    "ldotp": ".", "leqq": "<=", "geqq": ">=", "land": "and", "lor": "or", "wedge": "and",
    "vee": "or",
}  # fmt: skip
_BRACKETS = {
    "{": ("open", "{set"), "}": ("close", "set}"), "lbrace": ("open", "{set"), "rbrace": ("close", "set}"),
    "langle": ("open", "<"), "rangle": ("close", ">"), "lfloor": ("open", "floor"),
    "rfloor": ("close", "floor"),
    "lceil": ("open", "ceil"), "rceil": ("close", "ceil"), "lbrack": ("open", "["), "rbrack": ("close", "]"),
}  # fmt: skip
_GREEK = words(
    """alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi omicron
    rho varrho sigma varsigma tau upsilon phi varphi chi psi omega Alpha Beta Gamma Delta Theta Lambda
    Xi Pi Sigma Upsilon Phi Psi Omega hbar ell Re Im nabla partial angle triangle odot oplus otimes circ
    perp parallel dagger square Box top bot cdots ldots dots dotsc dotsb dotsm vdots ddots wp aleph
    imath jmath"""
)
_STRUCTURES = words(
    """frac sqrt binom dbinom tbinom sum prod int lim begin end mathbb overline bar dot pmod substack iint
    oint Rightarrow implies iff Longrightarrow stackrel overset overrightarrow widehat tilde widetilde
    not"""
)
_DOTS = frozenset({"cdots", "ldots", "dots", "dotsc", "dotsb", "dotsm", "vdots", "ddots"})
_OP_SPELLINGS = {"**": "^", "==": "=", "=<": "<=", "<>": "!=", "=>": "->", NEW_ROW: "\\\\"}
_GREEK_WORDS = _GREEK - words(
    """square Box top bot cdots ldots dots dotsc dotsb dotsm vdots ddots wp aleph imath jmath nabla partial
    angle triangle odot oplus otimes circ perp parallel dagger hbar ell Re Im"""
)
_CONNECTIVES = {"and": "and", "or": "or", "to": ":", "AND": "and", "OR": "or", "in": "in"}


def tokenise(text: str) -> list[Token]:
    """Tokens of a tidied answer, with an "end" token last.

    Raises:
        Refused: unreadable for a character or command that is not known; over_limit for too many tokens or
            digits.
    """
    tokens: list[Token] = []
    gap = False
    for match in _MASTER.finditer(text):
        kind = match.lastgroup or ""
        if kind == "space":
            gap = True
            continue
        if kind == "letters":
            after_number = bool(tokens) and tokens[-1].kind in ("num", "word")
            tokens.extend(_letters(match["letters"], gap, text[match.end() :].lstrip(), after_number))
        elif kind != "currency":
            tokens.extend(_tokens(kind, match[0], gap))
        if len(tokens) > MAX_TOKENS:
            raise Refused("over_limit", "too many tokens")
        gap = False
    tokens.append(Token("end", "", gap))
    return tokens


def _tokens(kind: str, value: str, gap: bool) -> list[Token]:
    """The tokens of one match of anything but letters."""
    if kind == "other":
        raise Refused("unreadable", f"character {value!r}")
    if kind == "num" and len(value) > MAX_DIGITS:
        raise Refused("over_limit", f"{len(value)} digits")
    if kind == "cmd":
        name = value[1:]
        glued = [] if name in _COMMANDS else _split_functions(name, gap)  # \sinx for \sin x
        return glued or [_command(name, gap)]
    if kind == "text":
        return _text(value[1:-1], gap)
    return [_operator(value, gap) if kind == "op" else Token(kind, value, gap)]


def _operator(value: str, gap: bool) -> Token:
    return Token("op", _OP_SPELLINGS.get(value, value), gap)


def _command_table() -> dict[str, tuple[str, str]]:
    """What each known command is: (kind, value)."""
    table = {name: ("func", name) for name in FUNCTIONS}
    table |= {name: ("cmd", name) for name in _STRUCTURES}
    table |= {
        name: ("sym", {"varepsilon": "epsilon", "varphi": "phi", "vartheta": "theta"}.get(name, name))
        for name in _GREEK
    }
    table |= dict.fromkeys(_DOTS, ("sym", "..."))
    table |= {"emptyset": ("set", "empty"), "varnothing": ("set", "empty"), "\\": ("op", "\\\\")}
    table |= {"infty": ("const", "inf"), "inf": ("const", "inf")}
    table |= {name: ("const", name) for name in ("pi", "e", "i")}
    table |= _BRACKETS
    return table | {name: ("op", value) for name, value in _OPERATORS.items()}


_COMMANDS = _command_table()


def _command(name: str, gap: bool) -> Token:
    known = _COMMANDS.get(name)
    if known is None:
        raise Refused("unreadable", f"command \\{name[:20]}")
    return Token(*known, gap)


def _text(inner: str, gap: bool) -> list[Token]:
    r"""What \text held: a connective, a percent or degree word, a function name, else words."""
    words = inner.replace(",", " , ").split()
    tokens: list[Token] = []
    for word in words:
        plain = word.strip(".:;()").casefold()
        if word == ",":
            tokens.append(Token("sep", ",", gap))
        elif plain in ("and", "or"):
            tokens.append(Token("sep", plain, gap))
        elif plain in ("pi", "infinity") and len(words) == 1:
            tokens.append(Token("const", "pi" if plain == "pi" else "inf", gap))
        elif plain == "to" and len(words) == 1:
            tokens.append(Token("op", ":", gap))
        elif plain in FUNCTIONS and len(words) == 1 and plain not in ("min", "sec"):
            tokens.append(Token("func", plain, gap))
        elif plain.isdecimal():
            tokens.append(Token("num", plain, gap))
        elif plain:
            tokens.append(_word(plain, word, gap))
        gap = True
    return tokens


def _word(plain: str, word: str, gap: bool) -> Token:
    if plain in PERCENT_WORDS:
        return Token("op", "%", gap)
    if plain in DEGREE_WORDS:
        return Token("op", "°", gap)
    if plain in SCALES:
        return Token("scale", plain, gap)
    return Token("word", word, gap)


def _letters(value: str, gap: bool, rest: str, after_number: bool) -> list[Token]:  # noqa: C901, PLR0911 - the order of the rules, top to bottom
    r"""A run of letters outside \text: a name of something, a word, or a product of one-letter symbols."""
    if len(value) == 1:
        return [Token("const", value, gap) if value in "ei" else Token("sym", value, gap)]
    if value == "in" and after_number and not rest:
        return [Token("word", value, gap)]
    if value in _CONNECTIVES:
        word = _CONNECTIVES[value]
        return [Token("op" if word in (":", "in") else "sep", word, gap)]
    if value in ("min", "sec") and after_number and not rest.startswith(("(", "{", "^", "\\")):
        return [Token("word", value, gap)]
    if value in FUNCTIONS:
        return [Token("func", value, gap)]
    plain = value.casefold()
    if plain in ("pi", "inf", "infinity", "infty", "oo"):
        return [Token("const", "pi" if plain == "pi" else "inf", gap)]
    if plain in ("sqrt", "frac"):
        return [Token("func", plain, gap)]
    if plain in _GREEK_WORDS:
        return [Token("sym", plain, gap)]
    if value in ("mod",):
        return [Token("op", "mod", gap)]
    if plain in PERCENT_WORDS or plain in DEGREE_WORDS or plain in SCALES or value in UNITS or plain in UNITS:
        return [_word(plain, value, gap)]
    if len(value) > 3 or not (value.islower() or value.isupper()) or _looks_like_word(value):
        return _split_functions(value, gap) or [Token("word", value, gap)]
    return [Token("const" if c in "ei" else "sym", c, gap and k == 0) for k, c in enumerate(value)]


def _looks_like_word(value: str) -> bool:
    """Three lower-case letters with a vowel inside, or one of the short English words."""
    if value in SHORT_WORDS:
        return True
    return (
        len(value) == 3
        and value[1] in "aeiou"
        and value[0] not in "aeiou"
        and value[2] not in "aeiou"
        and value.islower()
    )


def _split_functions(value: str, gap: bool) -> list[Token]:
    """Sinx, cosx, lnx, pir: a function or pi glued to one letter."""
    for name in ("arcsin", "arccos", "arctan", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "pi"):
        tail = value[len(name) :]
        if value.startswith(name) and len(tail) == 1 and tail.islower():
            head = Token("const", "pi", gap) if name == "pi" else Token("func", name, gap)
            return [head, Token("sym", tail, False)]
    return []
