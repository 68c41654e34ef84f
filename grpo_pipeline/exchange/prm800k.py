"""PRM800K's nesting (Lightman et al. 2023, arXiv 2305.20050): steps, each with several rated completions.

A line becomes one record for the solution's path and one for each completion off that path, labelled at that
completion only. The path takes at each step the completion that was chosen, else the one that a person wrote,
else the first: the wrong step at which a solution ends. A step without any completion (given up) is not on it.

Ratings: 1 is good, -1 wrong, 0 neutral (`records.NEUTRAL`), null unrated; a person's own completion is unrated.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.records import NEUTRAL, StepRecord, Written, hard
from grpo_pipeline.problems.records import RawRecord

NAME = "prm800k"

Slot = tuple[int, int | str]
"""Step, and index of the completion or "human"."""

_LABELS = {1: 1.0, 0: NEUTRAL, -1: 0.0}
_HUMAN = "human"


def to_label(rating: int | None, where: str) -> float | None:
    """The label of a rating; UserError for any but 1, 0, -1 and None."""
    if rating is None:
        return None
    if rating not in _LABELS:
        raise UserError(f"{where}: rating {rating!r}: expected 1, 0, -1 or null")
    return _LABELS[rating]


def to_rating(label: float | None) -> int | None:
    """The rating of a label; of an estimate that is not `NEUTRAL` that of its hard label."""
    if label is None:
        return None
    if label == NEUTRAL:
        return 0
    return 1 if hard(label) else -1


def read(raws: Sequence[RawRecord]) -> list[StepRecord]:
    """The path of each line, followed by what was judged beside it."""
    return [record for number, raw in enumerate(raws) for record in _records(raw, number)]


def _records(raw: RawRecord, line: int) -> Iterator[StepRecord]:
    # What is left of the line once every text and rating is taken out of it, to put them back on writing.
    frame: dict[str, Any] = copy.deepcopy(dict(raw.values))
    try:
        question, steps = frame["question"], frame["label"]["steps"]
        problem, gold = question["problem"], question.get("ground_truth_answer")
        if not isinstance(problem, str) or not isinstance(gold, str | None):
            raise TypeError("problem and ground_truth_answer are texts")
        path = [slot for index, step in enumerate(steps) if (slot := _on_path(step, index)) is not None]
        taken = {
            slot: (_text(entry), to_label(entry.pop("rating"), f"{raw.where}, step {slot[0]}"))
            for slot, entry in _entries(steps)
        }
        if unknown := [slot for slot in path if slot not in taken]:
            raise IndexError(f"step {unknown[0][0]} chooses completion {unknown[0][1]}, which it does not have")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(
            f"{raw.where}: not PRM800K's nesting (question.problem, label.steps[].completions[]): {error!r}"
        ) from None
    yield StepRecord(
        problem,
        tuple(taken[slot][0] for slot in path),
        tuple(taken[slot][1] for slot in path),
        gold,
        _final_answer(taken[path[-1]][0]) if path else None,
        NAME,
        {"line": line, "path": [list(slot) for slot in path], "frame": frame},
    )
    for slot, (text, label) in taken.items():
        if slot not in path:
            before = tuple(taken[one][0] for one in path if one[0] < slot[0])
            yield StepRecord(
                problem,
                (*before, text),
                (*(None for _ in before), label),
                gold,
                _final_answer(text),
                NAME,
                {"line": line, "slot": list(slot)},
            )


def _on_path(step: dict[str, Any], index: int) -> Slot | None:
    if step["chosen_completion"] is not None:
        return index, int(step["chosen_completion"])
    if step["human_completion"] is not None:
        return index, _HUMAN
    return (index, 0) if step["completions"] else None


def _entries(steps: list[dict[str, Any]]) -> Iterator[tuple[Slot, dict[str, Any]]]:
    for index, step in enumerate(steps):
        for number, completion in enumerate(step["completions"] or ()):  # null where a person wrote the only one
            yield (index, number), completion
        if step["human_completion"] is not None:
            yield (index, _HUMAN), step["human_completion"]


def _text(entry: dict[str, Any]) -> str:
    text = entry.pop("text")
    if not isinstance(text, str):
        raise TypeError(f"text {text!r:.60} is no text")
    return text


def _final_answer(text: str) -> str | None:
    _, marker, answer = text.partition("# Answer")
    return answer.strip() if marker else None


def write(records: Sequence[StepRecord]) -> Written:
    """One line for all records of a line that was read, and one for each record of another form.

    Skipped: without_path, a record off the path whose path is not among the records; no_steps.
    """
    written = Written()
    lines: dict[int, dict[str, Any]] = {}
    for record in records:
        extra = record.extra_of(NAME)
        if "frame" in extra:
            lines[extra["line"]] = copy.deepcopy(extra["frame"])
    for record in records:
        extra = record.extra_of(NAME)
        if not extra:
            _write_plain(record, written)
        elif extra["line"] not in lines:
            written.skipped["without_path"] += 1
        else:
            line = lines[extra["line"]]
            slots = extra["path"] if "frame" in extra else [extra["slot"]]
            # A record off the path fills its own slot, which is its last step.
            start = len(record.steps) - len(slots)
            for (index, number), text, label in zip(slots, record.steps[start:], record.labels[start:], strict=True):
                step = line["label"]["steps"][index]
                entry = step["human_completion"] if number == _HUMAN else step["completions"][number]
                entry |= {"text": text, "rating": to_rating(label)}
            if "frame" in extra:
                written.rows.append(line)
    return written


def _write_plain(record: StepRecord, written: Written) -> None:
    if not record.steps:
        written.skipped["no_steps"] += 1
        return
    steps = [
        {
            "completions": [{"text": text, "rating": to_rating(label), "flagged": None}],
            "human_completion": None,
            "chosen_completion": 0,
        }
        for text, label in zip(record.steps, record.labels, strict=True)
    ]
    wrong = record.labels[-1] is not None and not hard(record.labels[-1])
    written.rows.append(
        {
            "labeler": None,
            "timestamp": None,
            "generation": None,
            "is_quality_control_question": False,
            "is_initial_screening_question": False,
            "question": {"problem": record.question, "ground_truth_answer": record.gold_answer},
            "label": {"steps": steps, "total_time": None, "finish_reason": "found_error" if wrong else "solution"},
        }
    )
