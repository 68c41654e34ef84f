"""One check: extract, read, compare.

Simple answers (the same spelling, whole numbers, decimals, fractions, and everything whose value is a bounded
computation) are decided here, in the calling thread, in microseconds to a few milliseconds. What needs sympy
goes to a worker process that can be killed (`pool`).
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import get_args

from grpo_pipeline.answers import nodes as n
from grpo_pipeline.answers.compare import Comparer
from grpo_pipeline.answers.extract import extract
from grpo_pipeline.answers.normalise import looks_like_code
from grpo_pipeline.answers.reading import Reading, choice_of, is_bare_choice, read
from grpo_pipeline.answers.verdicts import Check, Mode, NeedsWorker, Refused

TIME_LIMIT = 2.0
_WHOLE = re.compile(r"-?\d{1,18}")
_GOLD_REASONS = {
    "empty": "gold_empty",
    "code": "gold_code",
    "over_limit": "gold_over_limit",
    "undefined": "gold_undefined",
}


def check(gold: str, text: str, mode: Mode = "solution", *, time_limit: float = TIME_LIMIT) -> Check:
    """Check a text against the gold answer.

    Args:
        gold: the gold answer, LaTeX or plain.
        text: an answer (mode "answer") or a whole solution from which the answer is extracted ("solution").
        mode: see `text`.
        time_limit: processor seconds after which a comparison in a worker process is given up (by the clock,
            at most three times that).

    Returns:
        The verdict; it raises for no text whatever.

    Raises:
        ValueError: for another mode.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {get_args(Mode)}, not {mode!r}")
    span, reason = find_span(gold, text, mode)
    bad = check_gold(gold)
    if bad is not None:
        return Check("bad_gold", span, bad)
    if span is None:
        return Check("no_answer", None, reason)
    try:
        return compare_spans(gold, span)
    except NeedsWorker:
        from grpo_pipeline.answers.pool import shared_pool

        return shared_pool().compare(gold, span, time_limit)


def is_correct(gold: str, text: str, mode: Mode = "solution") -> bool:
    r"""Whether the verdict is "correct".

    >>> is_correct("\\frac{1}{2}", "0.5", "answer")
    True
    """
    return check(gold, text, mode).verdict == "correct"


def find_span(gold: str, text: str, mode: Mode) -> tuple[str | None, str]:
    """The answer span and, where there is none, the reason."""
    if mode == "solution" or "\\boxed" in text or "\\fbox" in text:
        if mode == "solution" and len(text) < 2_000 and text.strip() == gold.strip():
            return text.strip(), ""
        found = extract(text)
        return found.span, found.reason
    span = text.strip()
    return (span, "") if span else (None, "empty")


def check_gold(gold: str) -> str | None:
    """Why a gold answer cannot be used, None if it can.

    >>> check_gold("")
    'gold_empty'
    """
    if _WHOLE.fullmatch(gold):
        return None
    return _gold_problem(gold)


@lru_cache(maxsize=8192)
def _gold_problem(gold: str) -> str | None:
    reading = read(gold)
    if gold.strip() == "None":  # a missing value that was turned into a string on its way
        return "gold_empty"
    if not reading.refused or (reading.refused == "unreadable" and _is_quotable(reading)):
        return None
    return _GOLD_REASONS.get(reading.refused, "gold_unreadable")


def _is_quotable(reading: Reading) -> bool:
    """A gold beyond the grammar is still of use word for word if it is well formed and says something."""
    key = reading.key
    balanced = key.count("{") == key.count("}")
    return balanced and bool(re.search(r"[A-Za-z0-9]", key)) and reading.words not in (
        "nan", "null", "n/a", "na", "unknown", "idk",
    )  # fmt: skip


def compare_spans(gold: str, span: str, *, heavy: bool = False) -> Check:
    """Compare a usable gold answer with an answer span.

    Raises:
        NeedsWorker: unless `heavy`, where the comparison has to go on in a worker process.
    """
    if _WHOLE.fullmatch(gold) and _WHOLE.fullmatch(span):
        return _verdict(span, equal=int(gold) == int(span))
    if looks_like_code(span[:20_000]):
        return Check("no_answer", span[:200], "code")
    if gold.strip() == span.strip():
        return Check("correct", span, "identical")
    try:
        return _compare(gold, span, heavy=heavy)
    except NeedsWorker:
        raise
    except Exception:  # noqa: BLE001 - a defect must not stop a run of millions; it is counted by its reason
        return Check("timeout", span, "internal_error")


def _compare(gold: str, span: str, *, heavy: bool) -> Check:
    """The rules that need no values, then the typed comparison."""
    meant, said = read(gold), read(span)
    early = _by_spelling(gold, span, meant, said)
    if early is not None:
        return early
    if said.refused:
        return _refusal(span, said.refused)
    if meant.refused:
        return Check("wrong", span, "text_differs") if _is_words(said) else Check("timeout", span, "undecided")
    return _compare_readings(meant, said, span, heavy=heavy)


def _by_spelling(gold: str, span: str, meant: Reading, said: Reading) -> Check | None:
    """Equal strings, choice letters and words."""
    if said.refused in ("empty", "over_limit"):
        return _refusal(span, said.refused)
    if meant.key == said.key:
        return Check("correct", span, "identical")
    if is_bare_choice(gold):
        letter, expected = choice_of(span), choice_of(gold)
        if letter is not None and expected is not None:
            return _verdict(span, equal=letter == expected)
    if meant.words == said.words and (_is_words(meant) or _is_words(said)):
        return Check("correct", span, "identical")
    return None


def _refusal(span: str, reason: str) -> Check:
    if reason == "empty":
        return Check("no_answer", None, reason)
    return Check("timeout" if reason == "internal_error" else "no_answer", span[:200], reason)


def _compare_readings(meant: Reading, said: Reading, span: str, *, heavy: bool) -> Check:
    comparer = Comparer(heavy=heavy)
    refused: Refused | None = None
    for expected in meant.nodes:
        for found in said.nodes:
            try:
                if comparer.same(expected, found):
                    return Check("correct", span, "equal")
            except Refused as error:
                refused = refused or error
            except RecursionError:
                refused = Refused("undecided", "recursion")
    if refused is None:
        kinds = type(meant.nodes[0]), type(said.nodes[0])
        if n.Words in kinds:
            return Check("wrong", span, "text_differs")
        return Check("wrong", span, "different")
    if refused.reason == "undecided":
        return Check("timeout", span, "undecided")
    if refused.reason in ("undefined", "over_limit") and _has_value(meant, heavy=heavy):
        return Check("no_answer", span, refused.reason)
    return Check("timeout", span, "undecided")


def _has_value(meant: Reading, *, heavy: bool) -> bool:
    """Whether the gold is not itself what could not be evaluated."""
    try:
        return Comparer(heavy=heavy).same(meant.nodes[0], n.Number(Fraction(0))) in (True, False)
    except (Refused, NeedsWorker):
        return False


def _verdict(span: str, *, equal: bool) -> Check:
    return Check("correct", span, "equal") if equal else Check("wrong", span, "different")


def _is_words(said: Reading) -> bool:
    return bool(said.nodes) and isinstance(said.nodes[0], n.Words)
