"""What a schedule is: which prefixes of a solution are completed, how often, and what its steps' labels are.

A schedule is a generator for one solution. It yields what it wants to see next, as step -> number of draws,
and is resumed when these draws are there; it returns a `Decision` for every step. The driver runs the
generators of all solutions side by side and batches what they ask for, so a wave of all solutions is one
call of the engine.

Draws are common random numbers: draw i of a prefix is the same whichever schedule asks. A schedule sees
exactly the first n draws that it asked for itself, so that what another solution with the same prefix asked
for cannot change a label.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal

from grpo_pipeline.labelling.evidence import Tally, Truncated

Source = Literal["sampled", "implied", "outcome", "unlabelled"]

Asks = dict[int, int]
"""Step index -> draws wanted in all (not more than before: draws 0..n-1)."""

Look = Callable[[int, int], Tally]
"""(step index, n) -> tally of that prefix's first n draws, which must have been asked for."""


@dataclass(frozen=True, slots=True)
class Solution:
    """What a schedule knows of a solution beforehand.

    Attributes:
        n_steps: K.
        open: For each step whether it can be completed: not the end of the solution, and with room for it.
        finished: Whether the last step is the solution's end; its label is then the outcome.
        outcome: Label of the end of a finished solution: 1 correct, 0 not, None undecided.
    """

    n_steps: int
    open: tuple[bool, ...]
    finished: bool
    outcome: int | None


@dataclass(frozen=True, slots=True)
class Settings:
    """A schedule's settings (see LabellingConfig)."""

    completions: int
    wave: int = 2
    interval_width: float = 0.5
    after_first_error: Literal["unlabelled", "zero"] = "unlabelled"
    truncated: Truncated = "not_correct"


@dataclass(frozen=True, slots=True)
class Decision:
    """A step's label and where it comes from.

    Attributes:
        source: sampled, implied, outcome, or unlabelled.
        hard: 1, 0, or None where there is no label.
        n_draws: Draws behind a sampled label.
        has_soft: Whether the share of correct draws is a soft label. It is not where sampling stopped at the
            first success: that share is biased upwards.
    """

    source: Source
    hard: int | None
    n_draws: int = 0
    has_soft: bool = False


Schedule = Generator[Asks, None, list[Decision]]
ScheduleFunction = Callable[[Solution, Look, Settings], Schedule]

UNLABELLED = Decision("unlabelled", None)
IMPLIED_GOOD = Decision("implied", 1)
IMPLIED_BAD = Decision("implied", 0)


def outcome_of(solution: Solution) -> Decision:
    """The label of a finished solution's last step."""
    return Decision("outcome", solution.outcome, has_soft=True)


def is_end(solution: Solution, step: int) -> bool:
    """Whether the step's label is the solution's outcome."""
    return solution.finished and step == solution.n_steps - 1


def sampled(step: int, n: int, look: Look, settings: Settings, *, has_soft: bool) -> Decision:
    """The label of a step from its first n draws."""
    return Decision("sampled", look(step, n).hard(settings.truncated), n, has_soft)


def until_success(step: int, look: Look, settings: Settings) -> Generator[Asks, None, Decision]:
    """Sample a step in waves up to its first success, or N draws without one.

    Its hard label equals that of N draws. Where all N were drawn, so does its soft label.
    """
    n = 0
    while n < settings.completions:
        n = min(n + settings.wave, settings.completions)
        yield {step: n}
        if look(step, n).n_correct:
            break
    return sampled(step, n, look, settings, has_soft=n == settings.completions)


def after_error(settings: Settings) -> Decision:
    """What the steps after the first bad one get."""
    return UNLABELLED if settings.after_first_error == "unlabelled" else IMPLIED_BAD
