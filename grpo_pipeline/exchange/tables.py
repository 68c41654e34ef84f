"""Records as tables and back: what `import` stores and `export` of an imported artifact reads."""

import base64
import json
from collections.abc import Sequence
from datetime import date, time
from typing import Any

import polars as pl

from grpo_pipeline.exchange.records import PairRecord, StepRecord
from grpo_pipeline.problems.identity import problem_id
from grpo_pipeline.seeds import derive_id
from grpo_pipeline.tables import from_rows


def solution_ids(records: Sequence[StepRecord], file_hash: str, start: int = 0) -> list[str]:
    """An id for each record of a file, from the file's content and the record's place."""
    return [derive_id("solution", file_hash, start + i) for i in range(len(records))]


def solutions_table(records: Sequence[StepRecord], ids: Sequence[str], start: int = 0) -> pl.DataFrame:
    """`solutions` rows; `start` is the place of the first record in its file."""
    return from_rows(
        [
            {
                "solution_id": name,
                "problem_id": problem_id(record.question, record.gold_answer or ""),
                "place": place,
                "form": record.form,
                "question": record.question,
                "gold_answer": record.gold_answer,
                "final_answer": record.final_answer,
                "steps": list(record.steps),
                "labels": list(record.labels),
                "extra": _json(dict(record.extra)),
            }
            for place, (record, name) in enumerate(zip(records, ids, strict=True), start)
        ],
        "solutions",
    )


def read_solutions(solutions: pl.DataFrame) -> list[StepRecord]:
    """The records of `solutions` rows, in their file's order."""
    return [
        StepRecord(
            row["question"],
            tuple(row["steps"]),
            tuple(row["labels"]),
            row["gold_answer"],
            row["final_answer"],
            row["form"],
            json.loads(row["extra"]),
        )
        for row in solutions.sort("place").iter_rows(named=True)
    ]


def problems_table(records: Sequence[StepRecord], *, source: str, split: str) -> pl.DataFrame:
    """`problems` rows of the records whose gold answer is known, each problem once."""
    known = {
        problem_id(record.question, record.gold_answer): record for record in records if record.gold_answer is not None
    }
    return from_rows(
        [
            {
                "problem_id": name,
                "source": source,
                "split": split,
                "question": record.question,
                "gold_answer": record.gold_answer,
            }
            for name, record in known.items()
        ],
        "problems",
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_as_text)


def _as_text(value: Any) -> str:
    """What a Parquet column may hold and JSON may not: dates and times in ISO 8601, bytes in Base64."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value.isoformat() if isinstance(value, date | time) else str(value)


def pairs_table(records: Sequence[PairRecord], start: int = 0) -> pl.DataFrame:
    """`pairs` rows; `start` is the place of the first record in its file."""
    return from_rows(
        [
            {
                "place": place,
                "prompt": _json(record.prompt),
                "chosen": _json(record.chosen),
                "rejected": _json(record.rejected),
                "extra": _json(dict(record.extra)),
            }
            for place, record in enumerate(records, start)
        ],
        "pairs",
    )


def read_pairs(pairs: pl.DataFrame, form: str) -> list[PairRecord]:
    """The records of `pairs` rows, in their file's order."""
    return [
        PairRecord(
            json.loads(row["prompt"]),
            json.loads(row["chosen"]),
            json.loads(row["rejected"]),
            form,
            json.loads(row["extra"]),
        )
        for row in pairs.sort("place").iter_rows(named=True)
    ]
