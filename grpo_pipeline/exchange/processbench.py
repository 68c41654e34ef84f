"""ProcessBench (arXiv 2412.06559): a solution's steps and the index of the first wrong one, -1 if there is none.

Steps before the first wrong one are good; those after it were not judged.
"""

from collections.abc import Sequence

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.records import OWN, StepRecord, Written, hard, rest, take, take_texts
from grpo_pipeline.problems.records import RawRecord

NAME = "processbench"


def read(raws: Sequence[RawRecord]) -> list[StepRecord]:
    """One record a line; raises UserError where the label is no step of the solution."""
    return [_record(raw) for raw in raws]


def _record(raw: RawRecord) -> StepRecord:
    steps = take_texts(raw, "steps")
    first_wrong = take(raw, "label", int, "a whole number")
    if not -1 <= first_wrong < len(steps):
        raise UserError(
            f"{raw.where}: field 'label': expected -1 or the index of one of {len(steps)} steps, found {first_wrong}"
        )
    return StepRecord(
        take(raw, "problem", str, "a text"),
        steps,
        step_labels(first_wrong, len(steps)),
        form=NAME,
        extra=rest(raw, ("problem", "steps", "label")),
    )


def step_labels(first_wrong: int, n_steps: int) -> tuple[float | None, ...]:
    """Labels of the steps: 1 up to the first wrong one, which is 0, then None."""
    if first_wrong < 0:
        return (1.0,) * n_steps
    return (1.0,) * first_wrong + (0.0,) + (None,) * (n_steps - first_wrong - 1)


def first_wrong_step(labels: Sequence[float | None]) -> int | None:
    """The index of the first wrong step, -1 if all are good, None where the labels do not tell."""
    for index, label in enumerate(labels):
        if label is None:
            return None
        if not hard(label):
            return index
    return -1


def write(records: Sequence[StepRecord]) -> Written:
    """Lines with id, generator, problem, steps, label, final_answer_correct.

    Skipped: undecided, records whose labels do not tell the first wrong step; no_steps, those of another form without
    any step, which would be called right.
    """
    written = Written()
    for index, record in enumerate(records):
        if not record.steps and record.form != NAME:
            written.skipped["no_steps"] += 1
            continue
        label = first_wrong_step(record.labels)
        if label is None:
            written.skipped["undecided"] += 1
            continue
        extra = record.extra_of(NAME)
        if record.form == OWN:
            extra = {
                "id": record.extra.get("rollout_id", str(index)),
                "generator": record.extra.get("policy_id"),
                "final_answer_correct": record.extra.get("correct"),
            }
        written.rows.append({"problem": record.question, "steps": list(record.steps), "label": label, **extra})
    return written
