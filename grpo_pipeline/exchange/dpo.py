"""Preference pairs as TRL's DPOTrainer reads them: prompt, chosen, rejected, each a text or a list of turns."""

from collections.abc import Sequence

from grpo_pipeline.exchange.records import PairRecord, Written, rest, take
from grpo_pipeline.problems.records import RawRecord

NAME = "dpo"

_COLUMNS = ("prompt", "chosen", "rejected")


def read(raws: Sequence[RawRecord]) -> list[PairRecord]:
    """One pair a line."""
    return [_record(raw) for raw in raws]


def _record(raw: RawRecord) -> PairRecord:
    prompt, chosen, rejected = (take(raw, column, (str, list), "a text or a list of turns") for column in _COLUMNS)
    return PairRecord(prompt, chosen, rejected, NAME, rest(raw, _COLUMNS))


def write(records: Sequence[PairRecord]) -> Written:
    """Lines with prompt, chosen, rejected."""
    return Written(
        [
            {
                "prompt": record.prompt,
                "chosen": record.chosen,
                "rejected": record.rejected,
                **(record.extra if record.form == NAME else {}),
            }
            for record in records
        ]
    )
