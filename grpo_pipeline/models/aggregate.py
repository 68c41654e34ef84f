"""From step scores to solution scores."""

from typing import Literal

import polars as pl

Aggregate = Literal["min", "prod", "last", "mean"]


def score_solutions(step_scores: pl.DataFrame, how: Aggregate) -> pl.DataFrame:
    """One score a solution from its step scores.

    Math-Shepherd takes the minimum; for PRMs trained on Monte-Carlo labels Zhang et al. 2025 (arXiv
    2501.07301) find the last step's score better.

    Returns:
        rollout_id, score (float64, in [0, 1]), sorted by rollout_id.
    """
    score = pl.col("score").cast(pl.Float64)
    aggregate = {
        "min": score.min(),
        "prod": score.product(),
        "last": score.sort_by("step_index").last(),
        "mean": score.mean(),
    }[how]
    return step_scores.group_by("rollout_id").agg(aggregate.alias("score")).sort("rollout_id")
