"""What is watched in every policy run (METHOD 7), from the frames of an exploration step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from grpo_pipeline.training.exploration import Experience

WINDOW = 10
"""Exploration steps on each side of the reward-hacking comparison."""


def experience_metrics(experience: Experience) -> dict[str, float]:
    """Monitors of one exploration step, named as TRL names them where TRL has one.

    Returns:
        reward, reward_std (mean of the groups'), frac_reward_zero_std, rewards/<part>/mean, accuracy,
        completions/*, steps_per_response, perplexity, undecided_ratio, and where a reward model scored prm_score (mean
        solution score) and prm_outcome_gap (the same less accuracy; not of a pairwise model, whose rewards are on no
        such scale). A figure without a value (no decided reward) is left out.
    """
    rollouts, advantages = experience.rollouts, experience.advantages
    lengths = rollouts["token_ids"].list.len().cast(pl.Float64)
    cut_off = rollouts["finish_reason"] == "length"
    verdict = experience.checked["verdict"]
    groups = (
        rollouts.select("problem_id")
        .with_columns(advantages["outcome_reward"])
        .group_by("problem_id")
        .agg(
            pl.col("outcome_reward").std().alias("std"),
            (pl.col("outcome_reward").max() == pl.col("outcome_reward").min()).alias("equal"),
        )
    )
    logprobs = rollouts["logprobs"].explode(empty_as_null=False)
    accuracy = _mean(verdict == "correct")
    metrics: dict[str, float | None] = {
        "reward": _mean(advantages["outcome_reward"]),
        "reward_std": _mean(groups["std"]),
        "frac_reward_zero_std": _mean(groups["equal"]),
        "accuracy": accuracy,
        "undecided_ratio": _mean(advantages["outcome_reward"].is_null()),
        "completions/mean_length": _mean(lengths),
        "completions/min_length": float(np.min(lengths.to_numpy())),
        "completions/max_length": float(np.max(lengths.to_numpy())),
        "completions/clipped_ratio": _mean(cut_off),
        "completions/mean_terminated_length": _mean(lengths.filter(~cut_off)),
        "steps_per_response": experience.steps.height / rollouts.height,
        "perplexity": math.exp(-(_mean(logprobs) or 0.0)),
    }
    for column in advantages.columns:
        if column.startswith("reward_"):
            metrics[f"rewards/{column.removeprefix('reward_')}/mean"] = _mean(advantages[column])
    if experience.solution_scores is not None and accuracy is not None:
        score = _mean(experience.solution_scores["score"])
        metrics["prm_score"] = score
        if experience.scores_are_probabilities:
            metrics["prm_outcome_gap"] = None if score is None else score - accuracy
    return {name: value for name, value in metrics.items() if value is not None}


def reward_hacking(rows: Sequence[Mapping[str, Any]], window: int = WINDOW) -> bool:
    """Whether the reward rises while outcome accuracy falls: the sign of a policy that games its reward.

    The means of the last `window` steps are compared with those of the `window` steps before. Both changes must
    be beyond two standard errors of their difference, so that noise does not raise the alarm.

    Args:
        rows: Metrics of the exploration steps so far, in order, with reward and accuracy.
        window: Steps on each side.
    """
    series = [(row["reward"], row["accuracy"]) for row in rows if row.get("reward") is not None]
    if len(series) < 2 * window:
        return False
    before, after = np.array(series[-2 * window : -window]), np.array(series[-window:])
    change = after.mean(0) - before.mean(0)
    error = np.sqrt((after.var(0, ddof=1) + before.var(0, ddof=1)) / window)
    return bool(change[0] > 2 * error[0] and change[1] < -2 * error[1])


def _mean(values: pl.Series) -> float | None:
    mean = values.cast(pl.Float64).mean()
    return float(mean) if isinstance(mean, float) else None
