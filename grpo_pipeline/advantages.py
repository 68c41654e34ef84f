"""Advantages of a group's tokens from its rewards (DeepSeekMath, arXiv 2402.03300, sections 4.1.2 and 4.1.3; METHOD 3).

Arrays here are flat: R rollouts with their group's number, S steps with their rollout's number. A missing
reward is NaN: it leaves its rollout out of the group's mean and standard deviation and gives it advantage 0.
`compute_advantages` does the same on frames, with groups keyed by problem, round and exploration step, and
`token_advantages` spreads a rollout's step advantages over its tokens.
"""

import numpy as np
import numpy.typing as npt
import polars as pl

from grpo_pipeline.config import GrpoConfig
from grpo_pipeline.errors import UserError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

GROUP_KEY = ("problem_id", "round", "step")
"""What makes rollouts a group; never the prompt's text."""


def outcome_advantages(rewards: Floats, group: Ints, *, eps: float = 1e-4, scale: bool = True) -> Floats:
    """Outcome supervision: (r_i - mean(r)) / (std(r) + eps) over the group.

    Args:
        rewards: (R,) reward of each rollout, NaN where it is missing.
        group: (R,) number of each rollout's group, in [0, groups).
        eps: Added to the sample standard deviation (n - 1), as TRL does.
        scale: Whether to divide at all (Dr. GRPO does not, arXiv 2503.20783).

    Returns:
        (R,) advantages; 0 for missing rewards and, exactly, for groups whose rewards are all equal.

    Raises:
        ValueError: For a group of one rollout: it has no baseline.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    _refuse_singletons(group)
    return _standardise(rewards, group, eps=eps, scale=scale)


def process_advantages(
    step_rewards: Floats,
    rollout: Ints,
    group: Ints,
    *,
    eps: float = 1e-4,
    scale: bool = True,
    step_mean: bool = False,
) -> Floats:
    """Process supervision: a step's advantage is the sum of the normalised rewards of itself and the steps after it.

    The pool that a reward is normalised over holds all step rewards of all rollouts of the group, so rollouts
    with more steps weigh more in it, and collect more terms: that is the paper's rule.

    Args:
        step_rewards: (S,) reward of each step, steps in order within a rollout, rollouts one after the other.
            A NaN leaves the whole rollout out.
        rollout: (S,) non-decreasing, in [0, R): whose step it is.
        group: (R,) number of each rollout's group, in [0, groups).
        eps: Added to the pool's sample standard deviation (n - 1).
        scale: Whether to divide by it.
        step_mean: Mean instead of sum over the steps to come.

    Returns:
        (S,) advantage of the tokens of each step: those after the step before it, up to its last token.

    Raises:
        ValueError: For a group of one rollout, or steps that do not stand rollout by rollout.
    """
    step_rewards = np.asarray(step_rewards, dtype=np.float64)
    _refuse_singletons(group)
    if np.any(np.diff(rollout) < 0):
        raise ValueError("process_advantages: rollout numbers must not decrease; sort the steps by rollout")
    missing = np.zeros(len(group), dtype=bool)
    missing[rollout[np.isnan(step_rewards)]] = True
    pool = np.where(missing[rollout], np.nan, step_rewards)
    normalised = _standardise(pool, group[rollout], eps=eps, scale=scale)
    advantages = _sums_to_come(normalised, rollout)
    return advantages / _sums_to_come(np.ones_like(normalised), rollout) if step_mean else advantages


def token_advantages(step_advantages: npt.ArrayLike, token_ends: npt.ArrayLike, n_tokens: int) -> Floats:
    """Spread step advantages over a rollout's response tokens.

    Args:
        step_advantages: (K,) advantage of each step's tokens; one element counts for all tokens, whatever the
            number of steps (outcome supervision).
        token_ends: (K,) inclusive index of each step's last token, non-decreasing; steps that end inside the
            same token share it, and it belongs to the first of them (METHOD 3: index(j) >= t).
        n_tokens: Response tokens; those after the last step's end (EOS) belong to the last step.

    Returns:
        (n_tokens,) advantages.

    Raises:
        ValueError: Where the two lengths do not fit, or there is no step.
    """
    values = np.asarray(step_advantages, dtype=np.float64)
    if len(values) == 1:
        return np.full(n_tokens, values[0])
    ends = np.asarray(token_ends, dtype=np.int64)
    if len(values) != len(ends) or not len(ends):
        raise ValueError(f"{len(values)} step advantages for {len(ends)} steps")
    step = np.searchsorted(ends, np.arange(n_tokens), side="left")
    return values[np.minimum(step, len(ends) - 1)]


def compute_advantages(
    rollouts: pl.DataFrame,
    steps: pl.DataFrame,
    rewards: pl.DataFrame,
    step_scores: pl.DataFrame | None,
    config: GrpoConfig,
) -> pl.DataFrame:
    """Rows of the `advantages` table, one a rollout, in the order of `rollouts`.

    Args:
        rollouts: Table `rollouts` of whole groups.
        steps: Table `steps` of these rollouts; only process supervision reads it.
        rewards: What `rewards.reward_rollouts` returned: a row a rollout, with outcome_reward.
        step_scores: Table `step_scores`; required by process supervision. A rollout whose steps are not all
            scored has step_rewards null and advantage 0.
        config: Supervision and normalisation.

    Raises:
        UserError: For a group of one rollout, a rollout without a row in `rewards`, or no step scores where
            process supervision needs them.
    """
    table = rollouts.select("rollout_id", *GROUP_KEY).join(
        rewards.select("rollout_id", "outcome_reward", pl.col("^reward_.*$")),
        on="rollout_id",
        how="left",
        validate="1:1",
        maintain_order="left",
    )
    unrewarded = table.join(rewards, on="rollout_id", how="anti")
    if unrewarded.height:
        raise UserError(f"{unrewarded.height} rollouts have no row in rewards, first: {unrewarded['rollout_id'][0]}")
    group = _group_numbers(table)
    outcome = outcome_advantages(
        table["outcome_reward"].cast(pl.Float64).fill_null(np.nan).to_numpy(),
        group,
        eps=config.advantage_eps,
        scale=config.scale_rewards,
    )
    if config.supervision == "outcome":
        step_rewards = pl.Series("step_rewards", [None] * table.height, dtype=pl.List(pl.Float32))
        step_advantages = pl.Series("step_advantages", outcome).cast(pl.Float32).reshape((-1, 1)).arr.to_list()
    else:
        if step_scores is None:
            raise UserError("supervision = 'process' needs step_scores: score the steps with a PRM first")
        step_rewards, step_advantages = _process_columns(
            table, steps, step_scores, group=group, outcome=outcome, config=config
        )
    return table.select(
        "rollout_id",
        "problem_id",
        "step",
        pl.col("outcome_reward").cast(pl.Float32),
        step_rewards,
        step_advantages,
        pl.col("^reward_.*$").cast(pl.Float32),
    )


def _process_columns(
    table: pl.DataFrame,
    steps: pl.DataFrame,
    step_scores: pl.DataFrame,
    *,
    group: Ints,
    outcome: Floats,
    config: GrpoConfig,
) -> tuple[pl.Series, pl.Series]:
    """Columns step_rewards and step_advantages for the R rows of `table`."""
    rows = table.select("rollout_id").with_row_index("row")
    scored = (
        steps.select("rollout_id", "step_index")
        .join(rows, on="rollout_id")
        .join(
            step_scores.select("rollout_id", "step_index", "score"),
            on=["rollout_id", "step_index"],
            how="left",
            validate="1:1",
        )
        .sort("row", "step_index")
    )
    rollout = scored["row"].cast(pl.Int64).to_numpy()
    advantages = process_advantages(
        scored["score"].cast(pl.Float64).fill_null(np.nan).to_numpy(),
        rollout,
        group,
        eps=config.advantage_eps,
        scale=config.scale_rewards,
        step_mean=config.step_mean,
    )
    # A rollout without steps (an empty response) keeps one element, so that its tokens have an advantage.
    outcome_part = config.outcome_weight * outcome
    lists = (
        scored.with_columns(advantage=pl.Series(advantages + outcome_part[rollout]))
        .group_by("row")
        .agg(
            pl.when(pl.col("score").null_count() == 0).then(pl.col("score").implode()).alias("step_rewards"),
            pl.col("advantage").alias("step_advantages"),
        )
    )
    columns = (
        rows.with_columns(no_steps=pl.Series(outcome_part).reshape((-1, 1)).arr.to_list())
        .join(lists, on="row", how="left", maintain_order="left")
        .select(
            pl.col("step_rewards").cast(pl.List(pl.Float32)),
            pl.coalesce("step_advantages", "no_steps").alias("step_advantages").cast(pl.List(pl.Float32)),
        )
    )
    return columns["step_rewards"], columns["step_advantages"]


def _group_numbers(table: pl.DataFrame) -> Ints:
    """(R,) number of each row's group, in order of appearance."""
    groups = (
        table.select(GROUP_KEY)
        .with_row_index("row")
        .group_by(GROUP_KEY, maintain_order=True)
        .agg("row")
        .with_row_index("group")
    )
    lone = groups.filter(pl.col("row").list.len() == 1)
    if lone.height:
        first = lone.row(0, named=True)
        raise UserError(
            f"{lone.height} groups have one rollout only, first: problem_id {first['problem_id']}, round "
            f"{first['round']}, step {first['step']}. A group's advantage needs at least two rollouts of a problem."
        )
    return groups.explode("row").sort("row")["group"].cast(pl.Int64).to_numpy()


def _refuse_singletons(group: Ints) -> None:
    lone = np.flatnonzero(np.bincount(group) == 1)
    if len(lone):
        raise ValueError(f"{len(lone)} groups have one rollout only, first: group {lone[0]}; it has no baseline")


def _standardise(values: Floats, group: Ints, *, eps: float, scale: bool) -> Floats:
    """(n,) values less their group's mean, over its sample standard deviation + eps; NaN in gives 0 out."""
    valid = ~np.isnan(values)
    result = np.zeros_like(values)
    if not valid.any():
        return result
    members, present = group[valid], values[valid]
    count = np.bincount(members)
    centred = present - (np.bincount(members, present) / np.maximum(count, 1))[members]
    deviation = np.sqrt(np.bincount(members, centred**2) / np.maximum(count - 1, 1))
    # Rewards are float32 columns: a spread of a few units in the last place is rounding, not a preference. The
    # test is on the spread since the computed deviation of equal numbers need not be 0.
    low, high = np.full(len(count), np.inf), np.full(len(count), -np.inf)
    np.minimum.at(low, members, present)
    np.maximum.at(high, members, present)
    magnitude = np.maximum(np.abs(low), np.abs(high))
    with np.errstate(invalid="ignore"):  # inf - inf in empty groups
        equal = (high - low <= 4 * np.finfo(np.float32).eps * magnitude) | (deviation == 0)
    divisor = np.where(equal, 1.0, deviation + eps) if scale else np.ones_like(deviation)
    result[valid] = np.where(equal[members], 0.0, centred / divisor[members])
    return result


def _sums_to_come(values: Floats, rollout: Ints) -> Floats:
    """(S,) sum of `values` from each step to its rollout's last."""
    if not len(values):
        return values
    # Backwards, a rollout's running sum starts anew where the rollout changes. Padding to (rollouts, longest)
    # keeps rollouts apart exactly, where differences of one long running sum would lose digits.
    starts = np.flatnonzero(np.r_[True, np.diff(rollout) != 0])
    sizes = np.diff(np.r_[starts, len(values)])
    line = np.repeat(np.arange(len(starts)), sizes)
    place = np.arange(len(values)) - np.repeat(starts, sizes)
    padded = np.zeros((len(starts), sizes.max()))
    padded[line, place] = values
    return np.cumsum(padded[:, ::-1], axis=1)[:, ::-1][line, place]
