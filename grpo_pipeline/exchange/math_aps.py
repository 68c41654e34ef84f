"""OmegaPRM-style search results as a list of prefixes (math-aps): each a question with the solution so far.

Every prefix is a record, labelled with its value at its last step only. Its earlier steps end where other
prefixes of the same question end. The same prefix may occur twice with two values, each an estimate of its own
completions. The prefix that is the question alone is a record without steps.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.records import StepRecord, Written, rest, take
from grpo_pipeline.problems.records import RawRecord

NAME = "math-aps"

_COLUMNS = ("question", "final_answer", "reasoning_steps")


def read(raws: Sequence[RawRecord]) -> list[StepRecord]:
    """One record a prefix, in the file's order."""
    return [record for line, raw in enumerate(raws) for record in _records(raw, line)]


def _records(raw: RawRecord, line: int) -> Iterator[StepRecord]:
    question = take(raw, "question", str, "a text")
    gold = take(raw, "final_answer", str, "a text")
    entries = take(raw, "reasoning_steps", list, "a list of prefixes")
    try:
        prefixes = [(str(entry["solution_prefix"]), float(entry["mc_value"])) for entry in entries]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{raw.where}: expected entries with solution_prefix and mc_value: {error!r}") from None
    known = sorted({prefix for prefix, _ in prefixes}, key=len)
    for index, (prefix, value) in enumerate(prefixes):
        if not prefix.startswith(question) or not 0 <= value <= 1:
            raise UserError(
                f"{raw.where}, entry {index}: expected a prefix that begins with the question and a value in [0, 1], "
                f"found {value} and {prefix!r:.60}"
            )
        ends = [len(one) for one in known if len(question) < len(one) < len(prefix) and prefix.startswith(one)]
        if len(prefix) > len(question):
            ends.append(len(prefix))
        steps = [prefix[start:end] for start, end in zip([len(question), *ends], ends, strict=False)]
        extra: dict[str, Any] = {"line": line, "entry": index}
        if index == 0:
            extra["columns"] = rest(raw, _COLUMNS)
        if not steps:
            extra["value"] = value
        # The white space around a step is the form's; it is kept apart so that it can be put back.
        bare = tuple(step.strip() for step in steps)
        extra["space"] = [
            [s[: len(s) - len(s.lstrip())], s[len(s.rstrip()) :]] if s.strip() else [s, ""] for s in steps
        ]
        labels = (*(None for _ in steps[1:]), value) if steps else ()
        yield StepRecord(question, bare, labels, gold, form=NAME, extra=extra)


def write(records: Sequence[StepRecord]) -> Written:
    """One line for all records of a line that was read; records of other forms are skipped (no_prefixes)."""
    written = Written()
    lines: dict[int, dict[str, Any]] = {}
    mine = [record for record in records if record.form == NAME]
    for record in sorted(mine, key=lambda r: (r.extra["line"], r.extra["entry"])):
        extra = record.extra
        if extra["line"] not in lines:
            lines[extra["line"]] = {
                "question": record.question,
                "final_answer": record.gold_answer,
                "reasoning_steps": [],
                **extra.get("columns", {}),
            }
        spaced = (f"{lead}{step}{trail}" for step, (lead, trail) in zip(record.steps, extra["space"], strict=True))
        entry = {
            "solution_prefix": record.question + "".join(spaced),
            "mc_value": record.labels[-1] if record.steps else extra["value"],
        }
        lines[extra["line"]]["reasoning_steps"].append(entry)
    written.rows.extend(lines.values())
    if len(records) > len(mine):
        written.skipped["no_prefixes"] = len(records) - len(mine)
    return written
