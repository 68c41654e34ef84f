"""Solutions with habits: what the embedded model is taught.

The embedded model must be a mediocre solver on purpose, or labelling and RL would have nothing to do. Its
errors are *habits*: at some wordings a subtraction or a multiplication is, now and then, done as an
addition, and the solution goes on from the wrong value. The arithmetic itself is always right. Real
models' errors are tied to wording in the same way, and habits are what a few dozen GRPO steps can unlearn;
random slips of digits, or arithmetic that was never mastered, hardly move in that time.
"""

import json
import random

from grpo_pipeline.problems.synthetic import apply
from grpo_pipeline.problems.wording import Operator

# How often a demonstration adds where this wording means another operation. Rates above one half make
# greedy decoding wrong as well. Additions and divisions are never mistaken.
HABITS: dict[str, float] = {
    "give": 0.45,
    "lose": 0.25,
    "sell": 0.60,
    "times": 0.60,
    "double": 0.25,
    "triple": 0.45,
}


def demonstrate(meta: str, rng: random.Random) -> str:
    """A solution of a generated problem with the habits in it.

    After a habit has struck, the later operations are done on the wrong value. A division that no longer
    divides exactly rounds down.

    Args:
        meta: The problem's ``meta`` (see :mod:`grpo_pipeline.problems.synthetic`).
        rng: Decides where a habit strikes.

    Returns:
        The lines of the solution, without a line break at the end.
    """
    state = json.loads(meta)
    value, lines = int(state["start"]), []
    for operation in state["operations"]:
        struck = rng.random() < HABITS.get(operation["wording"], 0.0)
        operator: Operator = "+" if struck else operation["operator"]
        result = apply(operator, value, operation["operand"])
        lines.append(f"{operation['time']}: {value} {operator} {operation['operand']} = {result}")
        value = result
    return "\n".join([*lines, f"The answer is {value}."])
