"""Forms of records: how a question, its gold answer and its solution are taken out of a source's record.

Adding a form is one small function and a line in `READERS`; most sources only need the `columns` reader. A user's
own is a function named as ``module:function`` that takes a record as a dictionary and returns a dictionary with
`question`, `gold_answer` and, if there is one, `gold_solution`, or None for a record to leave out.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from grpo_pipeline.entry_point import load_entry_point
from grpo_pipeline.errors import UserError
from grpo_pipeline.problems.records import RawRecord


@dataclass(frozen=True)
class ProblemRecord:
    """A problem as its source states it; `gold_answer` is None where the record holds none."""

    question: str
    gold_answer: str | None
    gold_solution: str | None = None
    meta: str | None = None


Reader = Callable[[RawRecord], ProblemRecord | None]
"""Record -> problem, or None where a user's reader leaves the record out."""

_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_CALCULATION = re.compile(r"<<[^<>]*>>")
_COLUMNS = ("question", "gold_answer", "gold_solution")


def read_gsm8k(record: RawRecord) -> ProblemRecord:
    """GSM8K: `question`, and `answer` with one step a line and "#### 72" last.

    The solution keeps its last line, and loses the calculator's marks (``<<48/2=24>>``).
    """
    answer = _text(record, "answer")
    _, marker, gold = answer.rpartition("####")
    solution = _CALCULATION.sub("", answer)
    return ProblemRecord(_text(record, "question"), _plain_number(gold) if marker else None, solution)


def read_math500(record: RawRecord) -> ProblemRecord:
    """MATH-500: `problem`, `answer`, `solution`; the rest goes to meta."""
    solution = _optional_text(record, "solution")
    meta = _rest(record, ("subject", "level", "unique_id"))
    return ProblemRecord(_text(record, "problem"), _answer(record, "answer"), solution, meta)


def read_svamp(record: RawRecord) -> ProblemRecord:
    """SVAMP: `Body` and `Question` make the question; `Answer` is a float (145.0 is "145")."""
    body, question = _text(record, "Body").strip(), _text(record, "Question").strip()
    joint = " " if body.endswith((".", "?", "!", ",")) else ". "
    meta = _rest(record, ("ID", "Type", "Equation"))
    return ProblemRecord(f"{body}{joint}{question}" if body else question, _answer(record, "Answer"), None, meta)


def read_columns(columns: Mapping[str, str], record: RawRecord) -> ProblemRecord:
    """Any record, by a mapping from our names to the source's columns."""
    solution = columns.get("gold_solution")
    return ProblemRecord(
        _text(record, columns["question"]),
        _answer(record, columns["gold_answer"]),
        _optional_text(record, solution) if solution else None,
    )


READERS: dict[str, Reader] = {"gsm8k": read_gsm8k, "math500": read_math500, "svamp": read_svamp}


def load_reader(name: str) -> Reader:
    """A user's reader by its name, with checks of what it returns.

    Raises:
        UserError: It cannot be loaded; on a call, that it returned something else than a problem or None.
    """
    function = load_entry_point(name, "problems.reader")

    def read(record: RawRecord) -> ProblemRecord | None:
        try:
            found = function(dict(record.values))
        except UserError as error:
            raise UserError(f"{record.where}: {error}") from error
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise UserError(
                f"{record.where}: reader {name!r} returned {type(found).__name__}; expected a dictionary with "
                "question, gold_answer and perhaps gold_solution, or None to leave the record out"
            )
        unknown, missing = sorted(set(found) - set(_COLUMNS)), [c for c in _COLUMNS[:2] if c not in found]
        if unknown or missing:
            raise UserError(
                f"{record.where}: reader {name!r} must return {', '.join(_COLUMNS)}; "
                + (f"unknown: {', '.join(unknown)}" if unknown else f"missing: {', '.join(missing)}")
            )
        return read_columns(
            {column: column for column in _COLUMNS}, RawRecord(record.where, {"gold_solution": None, **found})
        )

    return read


def choose_reader(name: str, columns: Mapping[str, str], first: RawRecord) -> Reader:
    """The reader of that name; `auto` recognises a form by the first record.

    Raises:
        UserError: The mapping is incomplete, or no form fits the record.
    """
    if name == "columns":
        unknown, missing = sorted(set(columns) - set(_COLUMNS)), sorted(set(_COLUMNS[:2]) - set(columns))
        if unknown or missing:
            raise UserError(
                f"problems.columns maps {', '.join(_COLUMNS)} to the source's columns; "
                + (f"unknown: {', '.join(unknown)}" if unknown else f"missing: {', '.join(missing)}")
            )
        return partial(read_columns, dict(columns))
    if name != "auto":
        return load_reader(name) if ":" in name else READERS[name]
    have = set(first.values)
    if {"Body", "Question", "Answer"} <= have:
        return read_svamp
    if {"question", "gold_answer"} <= have:
        return partial(read_columns, {column: column for column in _COLUMNS if column in have})
    if {"problem", "answer"} <= have:
        return read_math500
    if {"question", "answer"} <= have and "####" in str(first.values["answer"]):
        return read_gsm8k
    raise UserError(
        f"{first.where}: no known form has the columns {', '.join(sorted(have))}; set problems.reader, or "
        "problems.reader = 'columns' with problems.columns, e.g. {question = 'prompt', gold_answer = 'target'}"
    )


def _value(record: RawRecord, column: str) -> Any:
    if column not in record.values:
        raise UserError(f"{record.where}: no column {column!r}; there are {', '.join(record.values) or 'none'}")
    return record.values[column]


def _text(record: RawRecord, column: str) -> str:
    value = _value(record, column)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{record.where}: column {column}: expected text, found {type(value).__name__} {value!r:.60}")
    return value


def _optional_text(record: RawRecord, column: str) -> str | None:
    return _text(record, column) or None if column in record.values else None


def _answer(record: RawRecord, column: str) -> str | None:
    value = _value(record, column)
    if value is None or isinstance(value, str):
        return None if value is None or not value.strip() else _plain_number(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(
            f"{record.where}: column {column}: expected text or a number, found {type(value).__name__} {value!r:.60}"
        )
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _plain_number(text: str) -> str:
    """The answer stripped, and without the commas between thousands where it is a number: "(1,234)" keeps its own."""
    text = text.strip()
    return text.replace(",", "") if _THOUSANDS.fullmatch(text) else text


def _rest(record: RawRecord, columns: tuple[str, ...]) -> str | None:
    rest = {column: record.values[column] for column in columns if column in record.values}
    return json.dumps(rest, ensure_ascii=False) if rest else None
