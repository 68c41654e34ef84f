"""How good step labels are, against true step judgements."""

import numpy as np
import polars as pl

from grpo_pipeline.evaluation.binary import brier, roc_auc
from grpo_pipeline.evaluation.rows import Figure, evaluation_rows
from grpo_pipeline.schemas import LABEL_SOURCES


def label_quality(
    step_labels: pl.DataFrame,
    truth: pl.DataFrame,
    *,
    round: int,
    completer_id: str,
) -> pl.DataFrame:
    """Figures of one label set.

    Args:
        step_labels: `step_labels` columns.
        truth: rollout_id, step_index, is_good (bool): whether the step is truly right.
        round: The round that made the labels.
        completer_id: The model that completed the prefixes.

    Returns:
        `evaluations` rows, subject "labels": labelled_share (of the steps with a known truth), hard_label_accuracy
        (also for each label source that occurs), hard_false_zero (share of good steps labelled 0: too few
        completions), hard_false_one (share of bad steps labelled 1: a lucky completion), soft_label_brier,
        soft_label_auc, soft_label_bias (mean of soft - truth).

    Raises:
        ValueError: No label has a known truth.
    """
    known = step_labels.join(
        truth.select("rollout_id", "step_index", "is_good"), on=["rollout_id", "step_index"], validate="1:1"
    )
    if not known.height:
        raise ValueError("no label has a known truth; do both frames come from the same rollouts?")
    hard = known.filter(pl.col("hard").is_not_null())
    soft = known.filter(pl.col("soft").is_not_null())
    good, values = soft["is_good"].to_numpy(), soft["soft"].cast(pl.Float64).to_numpy()
    agrees = (pl.col("hard") == 1) == pl.col("is_good")
    figures = [
        Figure("labelled_share", hard.height / known.height, known.height),
        _share("hard_label_accuracy", hard, agrees),
        *(
            _share(f"hard_label_accuracy_{source}", part, agrees)
            for source in LABEL_SOURCES
            if (part := hard.filter(pl.col("label_source") == source)).height
        ),
        _share("hard_false_zero", hard.filter("is_good"), pl.col("hard") == 0),
        _share("hard_false_one", hard.filter(~pl.col("is_good")), pl.col("hard") == 1),
        Figure("soft_label_brier", brier(good, values), soft.height),
        Figure("soft_label_auc", roc_auc(good, values), soft.height),
        Figure("soft_label_bias", float(np.mean(values - good)) if soft.height else None, soft.height),
    ]
    return evaluation_rows(figures, round=round, subject="labels", subject_id=completer_id)


def _share(metric: str, frame: pl.DataFrame, condition: pl.Expr) -> Figure:
    if not frame.height:
        return Figure(metric, None, 0)
    return Figure(metric, frame.filter(condition).height / frame.height, frame.height)
