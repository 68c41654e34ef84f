"""The exact oracle for generated problems: which steps of a solution are truly right.

It reads the arithmetic in each step and follows it against the problem's own state (``meta``). It is used
only to *measure* step labels and reward models, never to train one.

Definition. A step is good iff the solution up to and including it can still be continued to the right answer
by correct reasoning. A generated problem is one chain of operations, so this means that every line up to
and including it is right:

- an equation ``a op b = c`` is right iff it is the next operation of the problem: its operator, its operands
  (in either order for ``+`` and ``*``) and its result are the problem's own. Several equations in one line
  must be the next operations in order;
- the line "The answer is N." is right iff N is the true answer;
- a line with no number in it claims nothing and is as good as the line before it (the first: good);
- a line with a number but neither an equation nor an answer, or with an equals sign outside its equations
  (``12 + 5 = 17 - 3 = 14``), cannot be read and is wrong.

Once a line is wrong, so is every later one, even where two errors cancel out: what was written is no
longer a solution that correct reasoning could finish.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

_NUMBER = r"-?\d+(?:\.\d+)?"
_CLAIM = re.compile(
    # The look-behind keeps the tail of "12" or of "1.5" from being read as an operand of its own.
    rf"(?<![\d.])(?P<left>{_NUMBER})\s*(?P<operator>[-+*/x×÷−])\s*(?P<right>{_NUMBER})\s*=\s*(?P<result>{_NUMBER})"
    rf"|(?i:the answer is)\s*:?\s*(?P<answer>{_NUMBER})"
)
_OPERATORS = {"x": "*", "×": "*", "÷": "/", "−": "-"}


@dataclass(frozen=True)
class _Operation:
    """One operation of the problem with the value it starts from."""

    left: Fraction
    operator: str
    right: Fraction
    result: Fraction


def judge_steps(meta: str, steps: Sequence[str]) -> list[bool]:
    """Say of each step whether it is truly right, by the definition in this module's docstring.

    Args:
        meta: The problem's ``meta`` column, as :func:`grpo_pipeline.problems.synthetic.generate_problems`
            wrote it.
        steps: The solution's steps in order, with or without their line breaks.

    Returns:
        One verdict per step; never True after a False.

    Raises:
        ValueError: ``meta`` is not a generated problem's.
    """
    operations, answer = _read_meta(meta)
    verdicts: list[bool] = []
    n_done, still_right = 0, True
    for step in steps:
        if still_right:
            read = _follow(step, operations, n_done, answer)
            still_right, n_done = read is not None, n_done if read is None else read
        verdicts.append(still_right)
    return verdicts


def _follow(step: str, operations: list[_Operation], n_done: int, answer: Fraction) -> int | None:
    """Operations done after a step that is right, or None when it is wrong."""
    claims = list(_CLAIM.finditer(step))
    if not claims:
        return None if re.search(r"\d", step) else n_done
    if "=" in _CLAIM.sub("", step):
        return None
    for claim in claims:
        if claim["answer"] is not None:
            if Fraction(claim["answer"]) != answer:
                return None
        elif n_done < len(operations) and _matches(claim, operations[n_done]):
            n_done += 1
        else:
            return None
    return n_done


def _matches(claim: re.Match[str], operation: _Operation) -> bool:
    """Whether an equation is this very operation."""
    operator = _OPERATORS.get(claim["operator"], claim["operator"])
    if operator != operation.operator or Fraction(claim["result"]) != operation.result:
        return False
    operands = (Fraction(claim["left"]), Fraction(claim["right"]))
    expected = (operation.left, operation.right)
    return operands == expected or (operator in "+*" and operands == expected[::-1])


def _read_meta(meta: str) -> tuple[list[_Operation], Fraction]:
    """The operations with their starting values, and the true answer."""
    try:
        state: dict[str, Any] = json.loads(meta)
        value = Fraction(state["start"])
        operations = []
        for entry in state["operations"]:
            result = Fraction(entry["result"])
            operations.append(_Operation(value, entry["operator"], Fraction(entry["operand"]), result))
            value = result
        return operations, Fraction(state["answer"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"the oracle needs a generated problem's meta (start, operations, answer), not {meta[:200]!r}"
        ) from error
