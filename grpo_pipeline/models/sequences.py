"""From rollouts to reward-model input: the sampled tokens and the positions where they are judged.

One builder for training, scoring and serving. It takes the tokens as they were sampled and never tokenises
decoded text again.
"""

from collections.abc import Collection, Sequence

import polars as pl


def step_sequences(rollouts: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """One row for each rollout that has steps: its tokens and where each step ends.

    Args:
        rollouts: `rollouts` columns; decides which rollouts come out.
        steps: `steps` columns; further columns of it are gathered into lists beside `step_positions`.

    Returns:
        rollout_id, problem_id, round, input_ids (prompt + response), step_positions (index into input_ids of
        each step's last token), and a list for each further column of `steps`; sorted by rollout_id.

    Raises:
        ValueError: Step indices are not 0, 1, 2, ... or a step ends outside its response or before the step
            in front of it.
    """
    known = {"rollout_id", "problem_id", "step_index", "text", "char_start", "char_end", "is_last", "prefix_hash"}
    further = [name for name in steps.columns if name not in known | {"token_end"}]
    lengths = rollouts.select(
        "rollout_id",
        pl.col("prompt_token_ids").list.len().cast(pl.Int32).alias("_prompt"),
        pl.col("token_ids").list.len().cast(pl.Int32).alias("_response"),
    )
    long = steps.join(lengths, on="rollout_id", how="inner").sort("rollout_id", "step_index")
    _check_steps(long)
    gathered = long.group_by("rollout_id", maintain_order=True).agg(
        (pl.col("token_end") + pl.col("_prompt")).cast(pl.Int32).alias("step_positions"), *further
    )
    return (
        rollouts.select(
            "rollout_id",
            "problem_id",
            "round",
            pl.concat_list("prompt_token_ids", "token_ids").alias("input_ids"),
        )
        .join(gathered, on="rollout_id", how="inner")
        .sort("rollout_id")
    )


def insert_tags(ids: Sequence[int], positions: Sequence[int], tag: int | None) -> tuple[list[int], list[int]]:
    """Put a tag token after every step; steps are then judged at their tags.

    Where two steps end in one token, both tags stand behind it. What was sampled stays as it is, token by token.

    Args:
        ids: (T,) prompt and response.
        positions: (K,) index of each step's last token, not decreasing.
        tag: The token; None inserts nothing.

    Returns:
        The (T + K,) ids and the (K,) indices of the tags.
    """
    if tag is None:
        return list(ids), list(positions)
    tagged: list[int] = []
    start = 0
    places = []
    for position in positions:
        tagged += ids[start : position + 1]
        tagged.append(tag)
        places.append(len(tagged) - 1)
        start = max(start, position + 1)
    return tagged + list(ids[start:]), places


def outcome_sequences(rollouts: pl.DataFrame, eos_token_ids: Collection[int]) -> pl.DataFrame:
    """One row for each rollout: its tokens up to the last one that an outcome model reads.

    A sampled EOS at the end is left out, so that the model reads the same token whether or not its padding is
    EOS (transformers' sequence classifiers read the rightmost token that is not padding).

    Returns:
        rollout_id, problem_id, round, input_ids, step_positions (one element: the last index); sorted by
        rollout_id.
    """
    ends_with_eos = pl.col("token_ids").list.last().is_in(list(eos_token_ids)).fill_null(value=False)
    response = pl.col("token_ids").list.head(pl.col("token_ids").list.len() - ends_with_eos.cast(pl.UInt32))
    return (
        rollouts.select(
            "rollout_id", "problem_id", "round", pl.concat_list("prompt_token_ids", response).alias("input_ids")
        )
        .with_columns(
            pl.concat_list(pl.col("input_ids").list.len().cast(pl.Int32) - 1)
            .cast(pl.List(pl.Int32))
            .alias("step_positions")
        )
        .sort("rollout_id")
    )


def eos_ids(tokenizer_eos: int | None, config_eos: int | Sequence[int] | None) -> set[int]:
    """Every EOS id that a tokenizer and a model's configuration name between them."""
    ids = {tokenizer_eos} if tokenizer_eos is not None else set()
    if isinstance(config_eos, int):
        ids.add(config_eos)
    elif config_eos is not None:
        ids.update(config_eos)
    return ids


def _check_steps(long: pl.DataFrame) -> None:
    position = pl.int_range(pl.len()).over("rollout_id")
    before = pl.col("token_end").shift(1).over("rollout_id").fill_null(0)
    faults = {
        "step indices are not 0, 1, 2, ...": pl.col("step_index") != position,
        "a step ends outside the response": ~pl.col("token_end").is_between(0, pl.col("_response") - 1),
        "a step ends before the one in front of it": pl.col("token_end") < before,
    }
    for what, condition in faults.items():
        bad = long.filter(condition)
        if bad.height:
            row = bad.row(0, named=True)
            raise ValueError(
                f"steps: {what}, in {bad.height} steps; first: rollout {row['rollout_id']}, step "
                f"{row['step_index']}, token_end {row['token_end']}, response of {row['_response']} tokens"
            )
