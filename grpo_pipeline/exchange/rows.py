"""Labelled solutions that came as text, as rows for PRM training.

Own solutions never pass here: they are trained on with their sampled tokens (`prm_dataset.build_prm_rows`).
The texts are written as own PRMs are later asked about texts (`models.forms.StepwiseForm`).
"""

from collections import Counter
from collections.abc import Sequence

import polars as pl
from transformers import PreTrainedTokenizerBase

from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.records import Neutral, StepRecord, hard, settle_neutral
from grpo_pipeline.models.forms import StepwiseForm
from grpo_pipeline.problems.identity import problem_id
from grpo_pipeline.prompts import DEFAULT_TEMPLATE
from grpo_pipeline.tables import from_rows


def build_text_rows(
    records: Sequence[StepRecord],
    ids: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    split: str,
    neutral: Neutral,
    template: str = DEFAULT_TEMPLATE,
    max_length: int,
) -> tuple[pl.DataFrame, Counter[str]]:
    """`prm_dataset` rows of records, up to the last labelled step of each.

    `soft` is the label, `hard` whether it is above 0 (`records.hard`).

    Args:
        records: The solutions.
        ids: Their ids, which become `rollout_id`.
        tokenizer: The reward model's.
        split: train or eval, for all of them.
        neutral: What a neutral rating becomes.
        template: Text around the question.
        max_length: Tokens of question and solution at most.

    Returns:
        The rows, and what was dropped: unlabelled (no label), empty_step (a step of white space alone, whose
        separator would be judged), too_long.

    Raises:
        UserError: A step that has no token of its own.
    """
    form = StepwiseForm(tokenizer, template=template)
    dropped: Counter[str] = Counter()
    rows = []
    for record, name in zip(records, ids, strict=True):
        labels = settle_neutral(record, neutral)
        last = max((i for i, label in enumerate(labels) if label is not None), default=-1)
        steps, labels = record.steps[: last + 1], labels[: last + 1]
        reason = _unusable(steps)
        if reason is None:
            try:
                encoded = form.encode(record.question, steps)
            except UserError as error:
                raise UserError(f"solution {name}: {error}") from None
            if len(encoded.input_ids) > max_length:
                reason = "too_long"
        if reason is not None:
            dropped[reason] += 1
            continue
        rows.append(
            {
                "rollout_id": name,
                "problem_id": problem_id(record.question, record.gold_answer or ""),
                "round": 0,
                "split": split,
                "input_ids": encoded.input_ids.tolist(),
                "step_positions": encoded.positions.tolist(),
                "soft": list(labels),
                "hard": [None if label is None else float(hard(label)) for label in labels],
                "is_replay": False,
            }
        )
    return from_rows(rows, "prm_dataset"), dropped


def _unusable(steps: Sequence[str]) -> str | None:
    if not steps:
        return "unlabelled"
    return None if all(step.strip() for step in steps) else "empty_step"
