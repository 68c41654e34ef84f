"""From step scores to solution scores."""

from typing import Literal

import polars as pl

Aggregate = Literal["min", "prod", "last", "mean"]


def strengths(solution_scores: pl.DataFrame) -> pl.DataFrame:
    """A pairwise model's rewards as Bradley-Terry strengths, exp(reward), relative to the best of each problem.

    By the model, one solution is preferred to another with odds of their strengths; so they may be weights in a
    vote, where rewards, which can be negative, may not. The order within a problem stays.

    Args:
        solution_scores: `solution_scores` columns of a pairwise model.

    Returns:
        rollout_id, score (float64, in [0, 1], 1 for the best of a problem), in the order of the input.
    """
    reward = pl.col("score").cast(pl.Float64)
    return solution_scores.select("rollout_id", (reward - reward.max().over("problem_id")).exp().alias("score"))


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
