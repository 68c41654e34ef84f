"""The evidence for a step's label: counts of what its completions came to, and what follows from counts alone."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Truncated = Literal["not_correct", "exclude"]
"""Whether a cut-off completion counts in N as not correct (the default, as the paper's frequency does), or not."""

Kind = Literal["correct", "wrong", "no_answer", "truncated", "timeout"]

Z95 = 1.959963984540054
"""Normal quantile of a two-sided 95% interval."""


def kind_of(finish_reason: str, verdict: str) -> Kind:
    """What a completion came to. A cut-off one is truncated, whatever its text holds: it did not conclude."""
    if finish_reason == "length":
        return "truncated"
    if verdict not in ("correct", "wrong", "no_answer", "timeout"):
        raise ValueError(f"verdict {verdict!r}: expected correct, wrong, no_answer or timeout")
    return verdict  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of completions of one prefix; truncated and timeout are undecided, not wrong."""

    n_correct: int = 0
    n_wrong: int = 0
    n_no_answer: int = 0
    n_truncated: int = 0
    n_timeout: int = 0

    @classmethod
    def of(cls, kinds: Iterable[Kind]) -> "Tally":
        """Count."""
        counts = dict.fromkeys(("correct", "wrong", "no_answer", "truncated", "timeout"), 0)
        for kind in kinds:
            counts[kind] += 1
        return cls(*counts.values())

    def counted(self, truncated: Truncated) -> int:
        """Completions that count towards the label: N without timeouts, and without truncated if excluded."""
        return (
            self.n_correct + self.n_wrong + self.n_no_answer + (self.n_truncated if truncated == "not_correct" else 0)
        )

    def soft(self, truncated: Truncated) -> float | None:
        """y_SE, the share of correct ones (Math-Shepherd, section 3.2); None where nothing was decided.

        By default a truncated completion counts as not correct.
        """
        n = self.counted(truncated)
        return self.n_correct / n if n else None

    def hard(self, truncated: Truncated) -> int | None:
        """y_HE, 1 if any completion is correct, else 0; None where nothing was decided."""
        n = self.counted(truncated)
        return int(self.n_correct > 0) if n else None


def wilson_interval(successes: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion, in [0, 1] (Wilson 1927, JASA 22, p. 209).

    Args:
        successes: Successes, 0 <= successes <= n.
        n: Trials; 0 gives (0, 1).
        z: Normal quantile of the wanted level.
    """
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # Rounding must not leave an end outside [0, 1], nor off it where the share is 0 or 1.
    low = 0.0 if successes == 0 else max(0.0, (middle - half) / scale)
    high = 1.0 if successes == n else min(1.0, (middle + half) / scale)
    return low, high
