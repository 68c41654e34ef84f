"""The neutral records between all forms: a solution with its step labels, and a pair of preferred and rejected."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_pipeline.errors import UserError
from grpo_pipeline.problems.records import RawRecord

OWN = "own"
"""Form of records that were made here: from this project's artifacts, not read from a file."""

NEUTRAL = 0.5
"""Label of a step that a person rated neutral: neither right nor wrong (PRM800K's 0)."""


@dataclass(frozen=True)
class StepRecord:
    """A solution, or the beginning of one, with a label for each step.

    A judged step is labelled in one record only: where several continuations of one prefix were judged, each
    is a record of its own whose earlier steps carry no label.

    Attributes:
        question: The question.
        steps: (K,) texts, without separators, tags or numbering that belong to the form.
        labels: (K,) each in [0, 1] (1 good, 0 wrong, between: estimates, or `NEUTRAL`), None where not judged.
        gold_answer: The right final answer, None where the form does not tell.
        final_answer: The solution's own final answer, None where the form does not tell.
        form: The form that `extra` belongs to.
        extra: What else that form says; JSON-able. A form writes back only its own.
    """

    question: str
    steps: tuple[str, ...]
    labels: tuple[float | None, ...]
    gold_answer: str | None = None
    final_answer: str | None = None
    form: str = OWN
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.labels):
            raise ValueError(f"{len(self.labels)} labels for {len(self.steps)} steps")

    def extra_of(self, form: str) -> dict[str, Any]:
        """`extra`, if it is that form's, else nothing."""
        return dict(self.extra) if self.form == form else {}


@dataclass(frozen=True)
class PairRecord:
    """Two responses to one prompt; `extra` and `form` as in `StepRecord`."""

    prompt: Any
    chosen: Any
    rejected: Any
    form: str = OWN
    extra: Mapping[str, Any] = field(default_factory=dict)


Record = StepRecord | PairRecord


@dataclass
class Written:
    """Rows in a form, and the records that it cannot hold.

    Attributes:
        rows: JSON-able objects, in the records' order.
        skipped: Reason -> records left out for it.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


Kind = Literal["steps", "pairs"]


def hard(label: float) -> bool:
    """The hard label of an estimate: good if any completion succeeded (Math-Shepherd, eq. 3); neutral is good."""
    return label > 0


def whole(record: StepRecord) -> tuple[tuple[str, ...], tuple[float, ...]] | str:
    """Steps and labels up to the last labelled step, for forms in which every step has a label.

    Returns:
        The steps and labels, or why the record does not fit: unlabelled (no label at all), unlabelled_step (a
        step without label stands before one with).
    """
    last = max((i for i, label in enumerate(record.labels) if label is not None), default=-1)
    kept = [label for label in record.labels[: last + 1] if label is not None]
    if not kept:
        return "unlabelled"
    if len(kept) != last + 1:
        return "unlabelled_step"
    return record.steps[: last + 1], tuple(kept)


def take(raw: RawRecord, column: str, kind: type | tuple[type, ...], expected: str) -> Any:
    """A column's value, which must be of that type.

    Raises:
        UserError: It is missing or of another type.
    """
    if column not in raw.values:
        raise UserError(f"{raw.where}: no field {column!r}; it has {', '.join(raw.values) or 'none'}")
    value = raw.values[column]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{raw.where}: field {column!r}: expected {expected}, found {value!r:.60}")
    return value


def take_texts(raw: RawRecord, column: str) -> tuple[str, ...]:
    """A column's list of texts; UserError where it is none."""
    values = take(raw, column, list, "a list of texts")
    if not all(isinstance(value, str) for value in values):
        raise UserError(f"{raw.where}: field {column!r}: expected texts only, found {values!r:.60}")
    return tuple(values)


def rest(raw: RawRecord, known: tuple[str, ...]) -> dict[str, Any]:
    """The columns besides the known ones."""
    return {name: value for name, value in raw.values.items() if name not in known}


Neutral = Literal["good", "bad", "unlabelled"]
"""What a neutral rating trains as; Lightman et al. 2023 count it as good."""

RATED_FORMS = ("prm800k", "prm800k-steps")
"""Forms in which `NEUTRAL` is a person's rating and not an estimate of one half."""


def settle_neutral(record: StepRecord, how: Neutral) -> tuple[float | None, ...]:
    """The record's labels, with a person's neutral ratings made 1, 0 or None."""
    if record.form not in RATED_FORMS:
        return record.labels
    settled = {"good": 1.0, "bad": 0.0, "unlabelled": None}[how]
    return tuple(settled if label == NEUTRAL else label for label in record.labels)
