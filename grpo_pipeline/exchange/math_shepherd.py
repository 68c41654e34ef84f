"""Math-Shepherd's text (arXiv 2312.08935): "question Step 1: ... ки", "Step 2: ... ки", and + or - for each tag.

The question and the first step share a line and are told apart by the words "Step 1: ". The numbers are the
form's: they are taken off where all steps carry them, and put back on writing.
"""

import re
from collections.abc import Sequence

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.records import StepRecord, Written, hard, rest, take, whole
from grpo_pipeline.problems.records import RawRecord

NAME = "math-shepherd"
TAG = "ки"

_ANSWER = re.compile(r"The answer is:?\s*(.+?)\s*$")
_SIGNS = {"+": 1.0, "-": 0.0}


def read(raws: Sequence[RawRecord]) -> list[StepRecord]:
    """One record a line; raises UserError where input and label do not fit together."""
    return [_record(raw) for raw in raws]


def _record(raw: RawRecord) -> StepRecord:
    text, judged = (take(raw, column, str, "a text") for column in ("input", "label"))
    pieces = text.split(TAG)
    labels = _labels(raw, pieces, judged)
    # The tag stands after a space; a line break leads to the next step. Anything else is kept as it is.
    *bodies, tail = pieces
    steps = [body.removeprefix("\n") if i else body for i, body in enumerate(bodies)]
    plain = (
        all(body.startswith("\n") for body in bodies[1:]) and all(body.endswith(" ") for body in bodies) and not tail
    )
    question, marker, first = steps[0].rpartition(" Step 1: ") if steps else ("", "", "")
    if not plain or not marker:
        raise UserError(
            f'{raw.where}: field \'input\': expected "question Step 1: ... {TAG}" and one line with " {TAG}" at its '
            f"end for each further step, found {text!r:.80}"
        )
    steps = [step.removesuffix(" ") for step in [f"Step 1: {first}", *steps[1:]]]
    extra = rest(raw, ("input", "label"))
    if all(step.startswith(_number(i)) for i, step in enumerate(steps)):
        steps = [step.removeprefix(_number(i)) for i, step in enumerate(steps)]
    else:
        extra = {"numbered": False, "columns": extra}
    answer = _ANSWER.search(steps[-1])
    return StepRecord(
        question, tuple(steps), tuple(labels), final_answer=answer[1] if answer else None, form=NAME, extra=extra
    )


def _labels(raw: RawRecord, pieces: list[str], judged: str) -> list[float]:
    labels: list[float] = []
    at = 0
    for index, piece in enumerate(pieces):
        if not judged.startswith(piece, at):
            raise UserError(
                f"{raw.where}: field 'label' is not 'input' with + and - for its tags: it differs from "
                f"character {at} on"
            )
        at += len(piece)
        if index < len(pieces) - 1:
            sign = judged[at : at + 1]
            if sign not in _SIGNS:
                raise UserError(f"{raw.where}: field 'label', step {index}: expected + or -, found {sign!r}")
            labels.append(_SIGNS[sign])
            at += 1
    if at != len(judged):
        raise UserError(f"{raw.where}: field 'label' goes on after the last step: {judged[at:]!r:.60}")
    return labels


def write(records: Sequence[StepRecord]) -> Written:
    """Lines with input and label.

    Skipped: records with unlabelled steps before labelled ones (see `records.whole`); tag_in_text (the tag
    occurs in question or steps); ambiguous (the first step holds "Step 1: ", so that the text could not be read
    back).
    """
    written = Written()
    for record in records:
        kept = whole(record)
        if isinstance(kept, str):
            written.skipped[kept] += 1
            continue
        steps, labels = kept
        extra = record.extra_of(NAME)
        numbered = extra.get("numbered", True)
        columns = extra if numbered else extra["columns"]
        lines = [f"{_number(i)}{step}" if numbered else step for i, step in enumerate(steps)]
        if TAG in record.question or any(TAG in line for line in lines):
            written.skipped["tag_in_text"] += 1
            continue
        if " Step 1: " in f" {lines[0].removeprefix('Step 1: ')}":
            written.skipped["ambiguous"] += 1
            continue
        signs = ["+" if hard(label) else "-" for label in labels]
        text = "\n".join(f"{line} {TAG}" for line in lines)
        judged = "\n".join(f"{line} {sign}" for line, sign in zip(lines, signs, strict=True))
        written.rows.append({"input": f"{record.question} {text}", "label": f"{record.question} {judged}", **columns})
    return written


def _number(index: int) -> str:
    return f"Step {index + 1}: "
