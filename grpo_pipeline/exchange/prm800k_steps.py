"""PRM800K with one rated step a row (Enhancing-PRM800K's stepwise-critic files).

A row holds the question (`instruction`), the steps before (`responses`), the step (`next_response`) and its
rating: 1, 0, -1, or null for a step that nobody rated (those that a person wrote, among others).
"""

from collections.abc import Sequence

from grpo_pipeline.exchange.prm800k import to_label, to_rating
from grpo_pipeline.exchange.records import StepRecord, Written, rest, take, take_texts
from grpo_pipeline.problems.records import RawRecord

NAME = "prm800k-steps"

_COLUMNS = ("instruction", "responses", "next_response", "answer", "rating")


def read(raws: Sequence[RawRecord]) -> list[StepRecord]:
    """One record a row, labelled at its last step only."""
    return [_record(raw) for raw in raws]


def _record(raw: RawRecord) -> StepRecord:
    before = take_texts(raw, "responses")
    label = to_label(take(raw, "rating", (int, type(None)), "1, 0, -1 or null"), raw.where)
    return StepRecord(
        take(raw, "instruction", str, "a text"),
        (*before, take(raw, "next_response", str, "a text")),
        (*(None for _ in before), label),
        final_answer=take(raw, "answer", (str, type(None)), "a text or null"),
        form=NAME,
        extra=rest(raw, _COLUMNS),
    )


def write(records: Sequence[StepRecord]) -> Written:
    """A row for the last step of each record of this form, and for each labelled step of any other's."""
    written = Written()
    for record in records:
        own = record.form == NAME
        judged = [i for i, label in enumerate(record.labels) if label is not None]
        last = len(record.steps) - 1
        if not own and not judged:
            written.skipped["unlabelled"] += 1
        for index in [last] if own else judged:
            written.rows.append(
                {
                    "instruction": record.question,
                    "responses": list(record.steps[:index]),
                    "next_response": record.steps[index],
                    "answer": record.final_answer if index == last else None,
                    "rating": to_rating(record.labels[index]),
                    **record.extra_of(NAME),
                }
            )
    return written
