"""RLHFlow's chat: the user says question and first step, then each further step; the assistant says + or -.

Where the first step begins is told by "Step 1: " (RLHFlow's data from Math-Shepherd). For steps without
numbers the question stands in a column of its own beside the conversation, which their trainer leaves alone.
"""

from collections.abc import Sequence
from typing import Any

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.records import StepRecord, Written, hard, rest, take, whole
from grpo_pipeline.problems.records import RawRecord

NAME = "rlhflow"

_SIGNS = {"+": 1.0, "-": 0.0}
_MARKER = " Step 1: "


def read(raws: Sequence[RawRecord]) -> list[StepRecord]:
    """One record a line; raises UserError where the turns are not question, sign, step, sign, ..."""
    return [_record(raw) for raw in raws]


def _record(raw: RawRecord) -> StepRecord:
    turns = take(raw, "conversations", list, "a list of turns")
    said = [_turn(raw, turn, index) for index, turn in enumerate(turns)]
    if not said or len(said) % 2:
        raise UserError(f"{raw.where}: field 'conversations': expected a sign after each step, found {len(said)} turns")
    labels = tuple(_SIGNS[sign] for sign in said[1::2])
    opening, *later = said[::2]
    if "question" in raw.values:
        question = take(raw, "question", str, "a text")
        if not opening.startswith(f"{question} "):
            raise UserError(f"{raw.where}: the conversation does not begin with its field 'question'")
        first = opening[len(question) + 1 :]
    else:
        question, marker, first = opening.rpartition(_MARKER)
        if not marker:
            raise UserError(
                f'{raw.where}: the first turn has no "Step 1: ", so that question and first step cannot be told '
                "apart; add the question as a field 'question'"
            )
        first = f"Step 1: {first}"
    return StepRecord(question, (first, *later), labels, form=NAME, extra=rest(raw, ("conversations", "question")))


def _turn(raw: RawRecord, turn: Any, index: int) -> str:
    role = "assistant" if index % 2 else "user"
    if not isinstance(turn, dict) or turn.get("role") != role or not isinstance(turn.get("content"), str):
        raise UserError(f"{raw.where}: turn {index}: expected a text of the {role}, found {turn!r:.60}")
    content: str = turn["content"]
    if index % 2 and content not in _SIGNS:
        raise UserError(f"{raw.where}: turn {index}: expected + or -, found {content!r:.20}")
    return content


def write(records: Sequence[StepRecord]) -> Written:
    """Lines with the conversation; records with gaps in their labels are skipped (`records.whole`)."""
    written = Written()
    for record in records:
        kept = whole(record)
        if isinstance(kept, str):
            written.skipped[kept] += 1
            continue
        steps, labels = kept
        turns = []
        for index, (step, label) in enumerate(zip(steps, labels, strict=True)):
            said = f"{record.question} {step}" if index == 0 else step
            turns.append({"role": "user", "content": said})
            turns.append({"role": "assistant", "content": "+" if hard(label) else "-"})
        told_apart = steps[0].startswith("Step 1: ") and _MARKER not in steps[0]
        question = {} if told_apart else {"question": record.question}
        written.rows.append({"conversations": turns, **question, **record.extra_of(NAME)})
    return written
