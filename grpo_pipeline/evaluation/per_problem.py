"""A policy's figures problem by problem, so that two policies can be compared on the same problems."""

import numpy as np
import polars as pl

from grpo_pipeline.evaluation.policy import (
    decided_samples,
    join_solutions,
    require_held_out,
    single_policy,
    values_by_k,
)
from grpo_pipeline.schemas import TABLES


def problem_figures(
    problems: pl.DataFrame,
    rollouts: pl.DataFrame,
    checked: pl.DataFrame,
    greedy: pl.DataFrame,
    kl: pl.DataFrame,
    *,
    k: int,
) -> pl.DataFrame:
    """Rows of the `problem_figures` table; what is counted and left out is as in `policy.evaluate_policy`.

    Args:
        problems: `problems` columns; every rollout must be of an evaluation problem among them.
        rollouts: `rollouts` columns of one policy, at least k a problem.
        checked: `checked` columns of these rollouts.
        greedy: `checked` columns of one greedy rollout a problem.
        kl: problem_id, value: the policy's KL to its reference (`reference.reference_kl`).
        k: Largest k of maj@k and pass@k.

    Returns:
        accuracy, greedy, maj{k}, pass{k}, mean_tokens and kl of each problem. A problem without a decided
        rollout has no accuracy, maj and pass; one whose greedy check timed out has no greedy.

    Raises:
        ValueError: As `policy.evaluate_policy`.
    """
    frame = join_solutions(problems, rollouts, checked, None, k)
    require_held_out(problems, greedy)
    samples = decided_samples(frame)
    known = [s.problem_id for s in samples]
    by_name = {"accuracy": [float(np.mean(s.correct)) for s in samples], **values_by_k(samples, k, scored=False)}
    lengths = frame.group_by("problem_id").agg(value=pl.col("token_ids").list.len().mean())
    decided = greedy.filter(pl.col("verdict") != "timeout")
    parts = {name: pl.DataFrame({"problem_id": known, "value": values}) for name, values in by_name.items()}
    parts["greedy"] = decided.select("problem_id", value=(pl.col("verdict") == "correct").cast(pl.Float64))
    parts["mean_tokens"] = lengths
    parts["kl"] = kl
    figures = pl.concat(
        part.select(
            pl.lit(single_policy(rollouts)).alias("policy_id"),
            "problem_id",
            pl.lit(name).alias("metric"),
            pl.col("value").cast(pl.Float64),
        )
        for name, part in parts.items()
    )
    return figures.select(TABLES["problem_figures"].schema.names).sort("problem_id", "metric")
