"""What a check says: verdicts, reasons, and the caps below which anything is looked at.

Every other module of this package imports from here; nothing here imports from them.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

# Raised when any verdict can change: a stored verdict names the version that gave it.
CHECKER_VERSION = "1"

Verdict = Literal["correct", "wrong", "no_answer", "timeout", "bad_gold"]
Mode = Literal["answer", "solution"]

# Caps on what is read at all. They bound the time and memory of everything that follows, so that the
# common comparison needs no process of its own.
MAX_ANSWER_CHARS = 4_000
MAX_TEXT_CHARS = 2_000_000
MAX_TOKENS = 2_000
MAX_DEPTH = 60
MAX_DIGITS = 4_000
MAX_INTEGER_BITS = 200_000
MAX_FACTORIAL = 5_000
MAX_NUMERIC_EXPONENT_BITS = 60


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check.

    Attributes:
        verdict: correct and wrong are decisions. no_answer: the text holds no answer that can be read.
            timeout: not decided (the limit was hit, or the two values could not be told apart), which is
            never to be counted as wrong. bad_gold: the gold answer cannot be used.
        answer: the extracted span that was compared, None where there was none.
        reason: a short code for why, one of the values of `REASONS`.
    """

    verdict: Verdict
    answer: str | None
    reason: str


REASONS: dict[str, str] = {
    "identical": "the same string once spacing, LaTeX style and delimiters are put aside",
    "equal": "the same value",
    "different": "both were understood and their values differ",
    "different_kind": "both were understood and are of different kinds (a list and a number, say)",
    "text_differs": "an answer in words that is not the gold's words",
    "empty": "nothing was answered",
    "not_found": "the text holds no marked answer and no number",
    "unclosed_box": "the only answer stands in a box that is never closed",
    "unreadable": "an answer that the grammar refuses",
    "over_limit": "an answer beyond the caps on length, depth, digits or exponents",
    "code": "an answer that looks like program code; it is never evaluated",
    "undefined": "an answer without a value, such as 0/0",
    "time_limit": "the comparison took too long and its process was killed",
    "undecided": "both were understood, but whether they are equal was not decided",
    "internal_error": "a defect of the checker itself, please report the pair; never a silent wrong",
    "worker_died": "the process that compared them died (out of memory, say)",
    "gold_empty": "the gold answer is empty",
    "gold_unreadable": "the gold answer cannot be understood",
    "gold_code": "the gold answer looks like program code",
    "gold_over_limit": "the gold answer is beyond the caps",
    "gold_undefined": "the gold answer has no value",
}


class Refused(Exception):
    """Reading or evaluating was refused; `reason` is one of `REASONS`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class NeedsWorker(Exception):
    """The comparison needs sympy or more time than the calling process may spend on it."""


def count_reasons(checks: Iterable[Check]) -> dict[str, int]:
    """How many checks gave each "verdict:reason", most frequent first.

    >>> count_reasons([Check("correct", "5", "equal"), Check("correct", "7", "equal")])
    {'correct:equal': 2}
    """
    return dict(Counter(f"{check.verdict}:{check.reason}" for check in checks).most_common())
