"""TRL's stepwise supervision: prompt, completions (one a step) and labels (true or false)."""

from collections.abc import Sequence

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.records import StepRecord, Written, hard, rest, take, take_texts, whole
from grpo_pipeline.problems.records import RawRecord

NAME = "trl-stepwise"


def read(raws: Sequence[RawRecord]) -> list[StepRecord]:
    """One record a line; raises UserError where labels and completions do not fit together."""
    return [_record(raw) for raw in raws]


def _record(raw: RawRecord) -> StepRecord:
    steps = take_texts(raw, "completions")
    labels = take(raw, "labels", list, "a list of true and false")
    if len(labels) != len(steps) or not all(isinstance(label, bool) or label in (0, 1) for label in labels):
        raise UserError(
            f"{raw.where}: field 'labels': expected true or false for each of {len(steps)} completions, "
            f"found {labels!r:.60}"
        )
    return StepRecord(
        take(raw, "prompt", str, "a text"),
        steps,
        tuple(float(label) for label in labels),
        form=NAME,
        extra=rest(raw, ("prompt", "completions", "labels")),
    )


def write(records: Sequence[StepRecord]) -> Written:
    """Lines with prompt, completions, labels; records with gaps in their labels are skipped (`records.whole`)."""
    written = Written()
    for record in records:
        kept = whole(record)
        if isinstance(kept, str):
            written.skipped[kept] += 1
            continue
        steps, labels = kept
        written.rows.append(
            {
                "prompt": record.question,
                "completions": list(steps),
                "labels": [hard(label) for label in labels],
                **record.extra_of(NAME),
            }
        )
    return written
