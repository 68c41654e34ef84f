"""Where a rollout's reward is decided: weighted parts, each its own column (METHOD 3).

A null is a reward that could not be decided; it is never a 0. Advantages leave such a rollout out of its group.
"""

import polars as pl

from grpo_pipeline.config import PolicyConfig, RewardConfig
from grpo_pipeline.entry_point import load_entry_point
from grpo_pipeline.errors import UserError

BUILT_IN = ("rule", "model", "format", "length")


def needs_reward_model(policy: PolicyConfig) -> bool:
    """Whether the configured method reads a reward model's scores; SFT, RFT, Online RFT and DPO never do."""
    process = policy.method == "grpo" and policy.grpo.supervision == "process"
    return process or (policy.method in ("grpo", "ppo") and policy.reward.model_weight > 0)


def verdict_reward() -> pl.Expr:
    """From the column verdict: 1 for correct, 0 for wrong and no answer, null for an undecided (timed-out) check."""
    verdict = pl.col("verdict")
    return pl.when(verdict != "timeout").then((verdict == "correct").cast(pl.Float32))


def reward_rollouts(
    rollouts: pl.DataFrame,
    checked: pl.DataFrame,
    config: RewardConfig,
    *,
    model_scores: pl.DataFrame | None = None,
    max_tokens: int,
) -> pl.DataFrame:
    """The reward of each rollout, in the order of `rollouts`.

    Args:
        rollouts: Table `rollouts`.
        checked: Table `checked`, a row for each of them.
        config: Weights of the parts.
        model_scores: Columns rollout_id and score: the reward model's score of the whole solution. A rollout
            that is not in it was not scored: null. None where no reward model is in use.
        max_tokens: Longest possible response, where the length penalty reaches -1.

    Returns:
        Columns rollout_id, problem_id, the parts, and outcome_reward, their weighted sum; all Float32. Parts:
        reward_rule in {0, 1} (null: the check timed out, or the response was cut off and
        `truncated = "null"`), reward_model (all null without `model_scores`), reward_format in {0, 1}
        (1: an answer is stated), reward_length in [-1, 0], and reward_<function> for each custom reward.
        outcome_reward is null where a part with a positive weight is.

    Raises:
        UserError: For a rollout without a verdict, a model weight without scores, or a custom reward that
            cannot be loaded or returns something other than one finite number or null a rollout.
    """
    frame = _with_verdicts(rollouts, checked)
    if model_scores is None:
        if config.model_weight > 0:
            raise UserError("reward.model_weight > 0 needs a reward model's scores: train one first, or set it to 0")
        frame = frame.with_columns(reward_model=pl.lit(None, pl.Float32))
    else:
        scores = model_scores.select("rollout_id", reward_model=pl.col("score").cast(pl.Float32))
        frame = frame.join(scores, on="rollout_id", how="left", validate="1:1", maintain_order="left")
    frame = frame.with_columns(
        reward_rule=_rule_reward(config),
        reward_format=_format_reward(),
        reward_length=_length_reward(config, max_tokens),
    )
    weights = {
        "reward_rule": config.rule_weight,
        "reward_model": config.model_weight,
        "reward_format": config.format_weight,
        "reward_length": config.length_weight,
    }
    for name, weight in config.custom.items():
        column = _custom_column(name, taken=weights)
        frame = frame.with_columns(_custom_reward(name, frame.select(pl.exclude("^reward_.*$"))).alias(column))
        weights[column] = weight
    # A part of weight 0 is only watched: its nulls must not make the reward undecided.
    parts = [pl.col(column).cast(pl.Float64) * weight for column, weight in weights.items() if weight > 0]
    outcome = pl.sum_horizontal(parts, ignore_nulls=False) if parts else pl.lit(0.0)
    return frame.select("rollout_id", "problem_id", *weights, outcome_reward=outcome.cast(pl.Float32))


def _with_verdicts(rollouts: pl.DataFrame, checked: pl.DataFrame) -> pl.DataFrame:
    verdicts = checked.select("rollout_id", "answer", "verdict")
    frame = rollouts.join(verdicts, on="rollout_id", how="left", validate="1:1", maintain_order="left")
    unchecked = frame.filter(pl.col("verdict").is_null())
    if unchecked.height:
        raise UserError(
            f"{unchecked.height} rollouts have no verdict in checked, first: rollout_id "
            f"{unchecked['rollout_id'][0]}. Check all rollouts before rewarding them."
        )
    return frame


def _rule_reward(config: RewardConfig) -> pl.Expr:
    """`verdict_reward`, but for a cut-off response by its own setting."""
    cut_off = pl.lit(0.0 if config.truncated == "zero" else None, pl.Float32)
    return pl.when(pl.col("finish_reason") == "length").then(cut_off).otherwise(verdict_reward())


def _format_reward() -> pl.Expr:
    return pl.col("answer").is_not_null().cast(pl.Float32)


def _length_reward(config: RewardConfig, max_tokens: int) -> pl.Expr:
    """0 up to length_target tokens, then in a straight line to -1 at max_tokens."""
    span = max_tokens - config.length_target
    if span <= 0:
        return pl.lit(0.0, pl.Float32)
    under = config.length_target - pl.col("token_ids").list.len().cast(pl.Float64)
    return (under / span).clip(-1.0, 0.0).cast(pl.Float32)


def _custom_column(name: str, taken: dict[str, float]) -> str:
    column = f"reward_{name.rpartition(':')[2]}"
    if column in taken:
        raise UserError(
            f"reward.custom: {name!r} would write the column {column}, which another reward has; rename the function "
            f"({', '.join(BUILT_IN)} are built in)"
        )
    return column


def _custom_reward(name: str, frame: pl.DataFrame) -> pl.Series:
    """What a user's function says of `frame`: the rollouts' columns, answer and verdict."""
    setting = f"reward.custom {name!r}"
    result = load_entry_point(name, "reward.custom")(frame)
    try:
        values = pl.Series(result, strict=True) if not isinstance(result, pl.Series) else result
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise UserError(
            f"{setting} returned {type(result).__name__}; a column of {frame.height} numbers is needed ({error})"
        ) from error
    if len(values) != frame.height:
        raise UserError(f"{setting} returned {len(values)} rewards for {frame.height} rollouts")
    if not (values.dtype.is_numeric() or values.dtype in (pl.Boolean, pl.Null)):
        raise UserError(f"{setting} returned a column of {values.dtype}; numbers are needed")
    rewards = values.cast(pl.Float32, strict=False)  # a number beyond its range becomes infinite
    bad = (~rewards.is_finite()).fill_null(value=False).arg_true()
    if len(bad):
        raise UserError(
            f"{setting} returned {values[bad[0]]} for {len(bad)} rollouts, first: rollout_id "
            f"{frame['rollout_id'][bad[0]]}. Return null where a reward cannot be decided."
        )
    return rewards
