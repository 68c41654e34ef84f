"""A seeded generator of multi-step arithmetic word problems.

A problem tells what happens to one person's pile of things: a starting number, then two to five events
(any number may be asked for), each of which is one operation on the number so far. The gold solution has
one line a step and ends with "The answer is N.":

    Tom has 12 apples. On Monday, he buys 5 more. On Tuesday, Tom loses 4. How many apples does Tom have now?

    Monday: 12 + 5 = 17
    Tuesday: 17 - 4 = 13
    The answer is 13.

``meta`` holds the problem's true state, which is all that :mod:`grpo_pipeline.problems.oracle` needs.

Problems are split in two pools by a bucket of their ``problem_id``. The embedded model's demonstrations come
from the ``demonstrations`` pool alone; the default pool is the rest. So no problem that a run generates,
whatever its seed, was ever shown to the embedded model.
"""

import json
import random
from typing import Any, Literal

from grpo_pipeline.problems.identity import problem_id
from grpo_pipeline.problems.wording import (
    ASKS,
    DAYS,
    MONTHS,
    OPENINGS,
    PEOPLE,
    THINGS,
    WORDINGS,
    Operator,
    Person,
    Wording,
)

SOURCE = "synthetic"
Pool = Literal["default", "demonstrations"]

# Small enough for a model of a third of a million parameters to master every sum that can occur.
SMALLEST_VALUE, LARGEST_VALUE = 2, 99
START_VALUES = (3, 40)

# Subtractions and multiplications are where the embedded model's habits sit, so they are the larger part.
OPERATOR_WEIGHTS: dict[Operator, float] = {"+": 0.30, "-": 0.35, "*": 0.25, "/": 0.10}

_OPERATORS = tuple(OPERATOR_WEIGHTS)
_WEIGHTS = tuple(OPERATOR_WEIGHTS.values())
_WORDINGS_OF = {o: tuple(w for w in WORDINGS if w.operator == o) for o in _OPERATORS}

# One problem in four belongs to the demonstrations. The last hex digit decides.
_DEMONSTRATION_DIGITS = frozenset("048c")

# A draw is refused when it is a duplicate or of the other pool; many refusals in a row mean that the space
# of problems with this few steps is used up.
_MAX_REFUSALS_IN_A_ROW = 10_000


def pool_of(identifier: str) -> Pool:
    """The pool a problem belongs to, decided by its ``problem_id`` alone."""
    return "demonstrations" if identifier[-1] in _DEMONSTRATION_DIGITS else "default"


def generate_problems(
    count: int, seed: int, min_steps: int = 2, max_steps: int = 4, pool: Pool = "default"
) -> list[dict[str, str]]:
    """Generate distinct word problems; the same arguments give the same rows, in order.

    The first k rows of a longer call are the rows of a shorter one with the same other arguments.

    Args:
        count: Number of problems, at least 0.
        seed: Any integer.
        min_steps: Fewest operations in a problem, at least 1.
        max_steps: Most operations in a problem, at most 12 (a problem spans at most a year); the number is
            drawn evenly from the range.
        pool: Which half of the id space to draw from; leave it alone except to make demonstrations.

    Returns:
        Rows of the ``problems`` table without id and split: ``source``, ``question``, ``gold_answer``,
        ``gold_solution`` and ``meta``, all text. ``meta`` is JSON: ``start``, ``answer`` and
        ``operations``, a list of ``{"time", "operator", "operand", "result", "wording"}``.

    Raises:
        ValueError: An argument is out of range, or there are not ``count`` distinct problems to be found.
    """
    if count < 0:
        raise ValueError(f"count must be at least 0, not {count}")
    if not 1 <= min_steps <= max_steps <= len(MONTHS):
        raise ValueError(
            f"steps must satisfy 1 <= min_steps <= max_steps <= {len(MONTHS)}, not {min_steps} and {max_steps}"
        )
    rng = random.Random(seed)
    rows: list[dict[str, str]] = []
    seen: set[str] = set()
    refusals = 0
    while len(rows) < count:
        row = _draw_problem(rng, rng.randint(min_steps, max_steps))
        identifier = problem_id(row["question"], row["gold_answer"])
        if identifier in seen or pool_of(identifier) != pool:
            refusals += 1
            if refusals > _MAX_REFUSALS_IN_A_ROW:
                raise ValueError(
                    f"found only {len(rows)} distinct problems of {min_steps} to {max_steps} steps, "
                    f"{count} were asked for; allow more steps or ask for fewer problems"
                )
            continue
        refusals = 0
        seen.add(identifier)
        rows.append(row)
    return rows


def _draw_problem(rng: random.Random, n_steps: int) -> dict[str, str]:
    """One problem with ``n_steps`` operations, as a row."""
    person, things = rng.choice(PEOPLE), rng.choice(THINGS)
    start = value = rng.randint(*START_VALUES)
    sentences = [rng.choice(OPENINGS).format(name=person.name, n=start, things=things)]
    lines: list[str] = []
    operations: list[dict[str, Any]] = []
    preposition, times = draw_times(rng, n_steps)
    for time in times:
        wording, operand = draw_operation(rng, value)
        result = apply(wording.operator, value, operand)
        sentences.append(f"{preposition} {time}, {_tell(rng, wording, operand, person)}")
        lines.append(f"{time}: {value} {wording.operator} {operand} = {result}")
        operations.append(
            {
                "time": time,
                "operator": wording.operator,
                "operand": operand,
                "result": result,
                "wording": wording.key,
            }
        )
        value = result
    sentences.append(rng.choice(ASKS).format(name=person.name, things=things))
    lines.append(f"The answer is {value}.")
    return {
        "source": SOURCE,
        "question": " ".join(sentences),
        "gold_answer": str(value),
        "gold_solution": "\n".join(lines),
        "meta": json.dumps({"start": start, "answer": value, "operations": operations}),
    }


def draw_operation(rng: random.Random, value: int) -> tuple[Wording, int]:
    """A wording and an operand that keep the value whole and within its range.

    Drawn until it fits, which ends: every value in the range can at least grow or shrink by 2.
    """
    while True:
        operator = rng.choices(_OPERATORS, _WEIGHTS)[0]
        wording = rng.choice(_WORDINGS_OF[operator])
        operand = rng.choice(wording.operands)
        if _fits(operator, value, operand):
            return wording, operand


def _fits(operator: Operator, value: int, operand: int) -> bool:
    """Whether the operation is exact, stays in range, and differs from every other one in its result."""
    if operator == "/" and value % operand:
        return False
    result = apply(operator, value, operand)
    if not SMALLEST_VALUE <= result <= LARGEST_VALUE:
        return False
    # 2 * 2 = 2 + 2 and 4 / 2 = 4 - 2: a wrong operation must not be right by luck.
    return result not in [apply(o, value, operand) for o in _OPERATORS if o != operator]


def apply(operator: Operator, value: int, operand: int) -> int:
    """The operation on whole numbers; division rounds down (generated problems only divide exactly)."""
    if operator == "+":
        return value + operand
    if operator == "-":
        return value - operand
    if operator == "*":
        return value * operand
    return value // operand


def _tell(rng: random.Random, wording: Wording, operand: int, person: Person) -> str:
    """The sentence for one operation."""
    who = person.name if rng.random() < 0.5 else person.pronoun
    return wording.sentence.format(who=who, n=operand)


def draw_times(rng: random.Random, n_steps: int) -> tuple[str, list[str]]:
    """A preposition and ``n_steps`` days or months in order, from a random one on."""
    by_day = n_steps <= len(DAYS) and rng.random() < 0.5
    times = DAYS if by_day else MONTHS
    first = rng.randrange(len(times))
    return ("On" if by_day else "In"), [times[(first + i) % len(times)] for i in range(n_steps)]
