"""Rows that reward models train on: token ids, label positions and labels; and preference pairs."""

import math
import random
from collections.abc import Collection
from dataclasses import dataclass

import polars as pl

from grpo_pipeline.models.sequences import outcome_sequences, step_sequences
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.seeds import derive_id, derive_seed

_COLUMNS = TABLES["prm_dataset"].schema.names


@dataclass(frozen=True)
class PrmRows:
    """Training rows and what was left out.

    Attributes:
        frame: `prm_dataset` columns, sorted by problem_id and rollout_id; evaluation problems keep split eval. For
            pairs `preference_pairs` columns.
        counts: rows, and the rollouts dropped for each reason: too_long, unlabelled, no_steps, undecided.
    """

    frame: pl.DataFrame
    counts: dict[str, int]


def build_prm_rows(
    rollouts: pl.DataFrame,
    steps: pl.DataFrame,
    step_labels: pl.DataFrame,
    problems: pl.DataFrame,
    *,
    max_length: int,
) -> PrmRows:
    """One row a rollout with the label of each step, on the tokens that were sampled.

    A step without label has null elements in `soft` and `hard`. Rollouts without any label, without steps, or
    longer than max_length are dropped and counted.

    Args:
        rollouts: `rollouts` columns; decides which rollouts come out.
        steps: `steps` columns.
        step_labels: `step_labels` columns.
        problems: `problems` columns; gives the split.
        max_length: Tokens of prompt and response at most.

    Raises:
        ValueError: A label of a step that does not exist, a rollout of an unknown problem, or a row whose
            label positions are not as many as its steps.
    """
    stray = step_labels.join(steps, on=["rollout_id", "step_index"], how="anti")
    if stray.height:
        row = stray.row(0, named=True)
        raise ValueError(
            f"{stray.height} labels of steps that do not exist; first: rollout {row['rollout_id']}, "
            f"step {row['step_index']}"
        )
    labelled = steps.join(
        step_labels.select(
            "rollout_id", "step_index", pl.col("soft").cast(pl.Float32), pl.col("hard").cast(pl.Float32)
        ),
        on=["rollout_id", "step_index"],
        how="left",
        validate="1:1",
    )
    sequences = step_sequences(rollouts, labelled)
    _check_positions(sequences, steps)
    return _finish(sequences, rollouts, problems, max_length)


def build_orm_rows(
    rollouts: pl.DataFrame,
    checked: pl.DataFrame,
    problems: pl.DataFrame,
    *,
    max_length: int,
    eos_token_ids: Collection[int],
) -> PrmRows:
    """One row a rollout with one label, its verdict, at the last token: what an outcome reward model trains on.

    A timeout, and a cut-off rollout that is not correct, is undecided: dropped and counted.

    Args:
        rollouts: `rollouts` columns.
        checked: `checked` columns.
        problems: `problems` columns; gives the split.
        max_length: Tokens of prompt and response at most.
        eos_token_ids: The reward model's EOS ids; a sampled EOS is not part of the input (see
            `models.sequences.outcome_sequences`).
    """
    decided = _decided(rollouts, checked)
    labels = decided.select(
        "rollout_id",
        pl.concat_list((pl.col("verdict") == "correct").cast(pl.Float32)).alias("soft"),
    ).with_columns(pl.col("soft").alias("hard"))
    kept = rollouts.join(labels.select("rollout_id"), on="rollout_id", how="semi")
    sequences = outcome_sequences(kept, eos_token_ids).join(labels, on="rollout_id", how="inner")
    rows = _finish(sequences, kept, problems, max_length)
    return PrmRows(rows.frame, rows.counts | {"undecided": rollouts.height - kept.height})


def build_pairs(rollouts: pl.DataFrame, checked: pl.DataFrame, *, pairs_per_problem: int, seed: int) -> pl.DataFrame:
    """Preference pairs by verdict: a correct response and a wrong one of the same problem and round.

    Undecided responses (timeout, or cut off) are on neither side, and a response that was sampled twice counts
    once. Pairs are distinct, drawn by seed whatever the order of the rows, and use as many different responses
    of both sides as possible.

    Args:
        rollouts: `rollouts` columns.
        checked: `checked` columns.
        pairs_per_problem: Pairs at most for each problem.
        seed: Seed of the draw.

    Returns:
        problem_id, round, chosen_id, rejected_id, prompt_token_ids, chosen_token_ids, rejected_token_ids, sorted
        by problem_id, round, chosen_id, rejected_id. Problems with only one side have no row.
    """
    usable = (
        _decided(rollouts, checked)
        .filter(pl.col("finish_reason") == "stop")
        .sort("rollout_id")
        .unique(["problem_id", "round", "token_ids"], keep="first", maintain_order=True)
        .with_columns(pl.col("verdict") == "correct")
    )
    sides = usable.group_by("problem_id", "round", maintain_order=True).agg(
        pl.col("rollout_id").filter("verdict").alias("good"),
        pl.col("rollout_id").filter(~pl.col("verdict")).alias("bad"),
    )
    rows = [
        (problem_id, round_, *pair)
        for problem_id, round_, good, bad in sides.iter_rows()
        for pair in _draw_pairs(good, bad, pairs_per_problem, derive_seed(seed, "pairs", round_, problem_id))
    ]
    pairs = pl.DataFrame(
        rows,
        {"problem_id": pl.String, "round": pl.Int32, "chosen_id": pl.String, "rejected_id": pl.String},
        orient="row",
    )
    tokens = usable.select("rollout_id", "prompt_token_ids", "token_ids")
    return (
        pairs.join(tokens.rename({"rollout_id": "chosen_id", "token_ids": "chosen_token_ids"}), on="chosen_id")
        .join(
            tokens.select(pl.col("rollout_id").alias("rejected_id"), pl.col("token_ids").alias("rejected_token_ids")),
            on="rejected_id",
        )
        .sort("problem_id", "round", "chosen_id", "rejected_id")
    )


def build_pair_rows(
    rollouts: pl.DataFrame,
    checked: pl.DataFrame,
    problems: pl.DataFrame,
    *,
    pairs_per_problem: int,
    max_length: int,
    eos_token_ids: Collection[int],
    seed: int,
) -> PrmRows:
    """Preference pairs as a pairwise reward model trains on them: `preference_pairs` rows.

    A sampled EOS is left out of both responses, as where solutions are scored (`models.sequences`).

    Args:
        rollouts: `rollouts` columns.
        checked: `checked` columns.
        problems: `problems` columns; gives the split.
        pairs_per_problem: Pairs at most for each problem.
        max_length: Tokens of prompt and response at most.
        eos_token_ids: The reward model's EOS ids.
        seed: Seed of the draw.

    Returns:
        The rows, and counts: rows, without_pair (problems with solutions of one side only, or undecided ones),
        too_long.
    """
    pairs = build_pairs(rollouts, checked, pairs_per_problem=pairs_per_problem, seed=seed)
    sides = ("chosen_token_ids", "rejected_token_ids")
    eos = list(eos_token_ids)
    frame = (
        pairs.join(problems.select("problem_id", "split"), on="problem_id", how="left", maintain_order="left")
        .with_columns(
            pl.col(side).list.head(
                pl.col(side).list.len() - pl.col(side).list.last().is_in(eos).fill_null(value=False).cast(pl.UInt32)
            )
            for side in sides
        )
        .with_columns(
            pl.Series("pair_id", [derive_id(*ids) for ids in pairs.select("chosen_id", "rejected_id").iter_rows()]),
            is_replay=pl.lit(value=False),
        )
    )
    longest = pl.col("prompt_token_ids").list.len() + pl.max_horizontal(pl.col(side).list.len() for side in sides)
    fits = frame.filter(longest <= max_length).select(TABLES["preference_pairs"].schema.names)
    counts = {
        "rows": fits.height,
        "without_pair": rollouts["problem_id"].n_unique() - pairs["problem_id"].n_unique(),
        "too_long": frame.height - fits.height,
    }
    return PrmRows(fits.sort("problem_id", "pair_id"), counts)


def require_training_rows(rows: pl.DataFrame, eval_problem_ids: Collection[str] = ()) -> None:
    """Raise unless every row may be trained on; every reward-model trainer calls this first.

    Args:
        rows: `prm_dataset` or `preference_pairs` columns.
        eval_problem_ids: Further problems that must not occur.

    Raises:
        ValueError: A row of an evaluation problem.
    """
    held_out = (pl.col("split") != "train") | pl.col("problem_id").is_in(list(eval_problem_ids))
    bad = rows.filter(held_out)
    if bad.height:
        key = "rollout_id" if "rollout_id" in bad.columns else "pair_id"
        raise ValueError(
            f"{bad.height} of {rows.height} training rows belong to evaluation problems; first: problem "
            f"{bad['problem_id'][0]}, {key} {bad[key][0]}. Evaluation problems never enter training"
        )


def _finish(sequences: pl.DataFrame, rollouts: pl.DataFrame, problems: pl.DataFrame, max_length: int) -> PrmRows:
    """Add split, drop and count what cannot be trained on, and put the columns in order."""
    counts = {"no_steps": rollouts.height - sequences.height}
    with_split = sequences.join(problems.select("problem_id", "split"), on="problem_id", how="left")
    unknown = with_split.filter(pl.col("split").is_null())
    if unknown.height:
        raise ValueError(f"rollouts of {unknown['problem_id'].n_unique()} problems that are not among the problems")
    unlabelled = pl.col("soft").list.drop_nulls().list.len() == 0
    counts["unlabelled"] = with_split.filter(unlabelled).height
    labelled = with_split.filter(~unlabelled)
    fits = labelled.filter(pl.col("input_ids").list.len() <= max_length)
    counts["too_long"] = labelled.height - fits.height
    frame = fits.with_columns(pl.lit(value=False).alias("is_replay")).select(_COLUMNS)
    return PrmRows(frame.sort("problem_id", "rollout_id"), {"rows": frame.height} | counts)


def _check_positions(sequences: pl.DataFrame, steps: pl.DataFrame) -> None:
    """The invariant of METHOD 2: as many label positions as steps, in every row."""
    counted = sequences.join(steps.group_by("rollout_id").len("_n_steps"), on="rollout_id", how="left")
    bad = counted.filter(
        (pl.col("step_positions").list.len() != pl.col("_n_steps"))
        | (pl.col("soft").list.len() != pl.col("_n_steps"))
        | (pl.col("hard").list.len() != pl.col("_n_steps"))
    )
    if bad.height:
        raise ValueError(f"{bad.height} rows whose label positions are not as many as their steps")


def _decided(rollouts: pl.DataFrame, checked: pl.DataFrame) -> pl.DataFrame:
    """Rollouts with a verdict that says something: no timeout, and no cut-off one that is not correct."""
    return rollouts.join(checked.select("rollout_id", "verdict"), on="rollout_id", how="inner", validate="1:1").filter(
        (pl.col("verdict") == "correct")
        | (pl.col("verdict").is_in(["wrong", "no_answer"]) & (pl.col("finish_reason") == "stop"))
    )


def _draw_pairs(good: list[str], bad: list[str], limit: int, seed: int) -> list[tuple[str, str]]:
    """Up to `limit` distinct pairs that go through both shuffled sides evenly."""
    if not good or not bad:
        return []
    rng = random.Random(seed)
    good, bad = rng.sample(good, len(good)), rng.sample(bad, len(bad))
    # Walking both lists together meets lcm(G, B) distinct pairs; then the second list is shifted by one.
    cycle = math.lcm(len(good), len(bad))
    count = min(limit, len(good) * len(bad))
    return [(good[k % len(good)], bad[(k + k // cycle) % len(bad)]) for k in range(count)]
