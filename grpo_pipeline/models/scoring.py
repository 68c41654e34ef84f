"""Scoring rollouts with a reward model: from sampled tokens to scores of steps and solutions."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from grpo_pipeline.config import TrainingConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.models.aggregate import Aggregate, score_solutions
from grpo_pipeline.models.reward import RewardModel
from grpo_pipeline.models.sequences import insert_tags, outcome_sequences, step_sequences
from grpo_pipeline.training.batching import Row
from grpo_pipeline.training.layouts import check_packable
from grpo_pipeline.training.loop import read_all
from grpo_pipeline.training.runner import Runner

__all__ = ["Aggregate", "judge", "score_outcomes", "score_solutions", "score_steps", "sigmoid"]

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


def score_steps(
    model: RewardModel, rollouts: pl.DataFrame, steps: pl.DataFrame, *, tokens_per_batch: int = 16384
) -> pl.DataFrame:
    """p(step good) of every step, read at the step's last sampled token.

    Args:
        model: A PRM.
        rollouts: `rollouts` columns.
        steps: `steps` columns of these rollouts.
        tokens_per_batch: Padded tokens of one forward pass; halved on out-of-memory.

    Returns:
        `step_scores` columns, sorted by rollout_id and step_index.

    Raises:
        UserError: The model is no PRM, or a solution does not fit its context or the memory.
        ValueError: Steps that do not belong to their rollout's tokens.
    """
    if model.kind != "prm":
        raise UserError(f"steps are scored by a prm, not by a {model.kind} model")
    sequences = step_sequences(rollouts, steps)
    ids, positions = _arrays(sequences["input_ids"]), _arrays(sequences["step_positions"])
    if model.tag is not None and ids:
        tagged = [insert_tags(row.tolist(), at.tolist(), model.tag) for row, at in zip(ids, positions, strict=True)]
        ids, positions = ([np.array(row, np.int32) for row in column] for column in zip(*tagged, strict=True))
    logits = judge(model, ids, positions, tokens_per_batch, n_prompt=_prompt_lengths(sequences, rollouts))
    return (
        sequences.select("rollout_id", "problem_id")
        .with_columns(
            pl.Series("step_index", [np.arange(len(row), dtype=np.int32) for row in logits], pl.List(pl.Int32)),
            pl.Series("score", [sigmoid(row) for row in logits], pl.List(pl.Float32)),
        )
        .explode("step_index", "score")
        .with_columns(pl.lit(model.id).alias("prm_id"))
    )


def score_outcomes(model: RewardModel, rollouts: pl.DataFrame, *, tokens_per_batch: int = 16384) -> pl.DataFrame:
    """One score a rollout from an outcome or pairwise reward model, read at its last token.

    Returns:
        `solution_scores` columns, sorted by rollout_id: p(correct) in [0, 1] from an ORM, the unbounded reward from
        a pairwise model.

    Raises:
        UserError: The model is neither, or a rollout does not fit its context or the memory.
    """
    if model.kind not in ("orm", "pairwise"):
        raise UserError(f"solutions are scored by an orm or a pairwise model, not by a {model.kind}")
    sequences = outcome_sequences(rollouts, model.eos_token_ids)
    logits = judge(
        model,
        _arrays(sequences["input_ids"]),
        _arrays(sequences["step_positions"]),
        tokens_per_batch,
        n_prompt=_prompt_lengths(sequences, rollouts),
    )
    values = np.concatenate(logits) if logits else np.empty(0, np.float32)
    return sequences.select("rollout_id", "problem_id").with_columns(
        pl.Series("score", sigmoid(values) if model.kind == "orm" else values, pl.Float32),
        pl.lit(model.id).alias("reward_model_id"),
    )


def judge(
    model: RewardModel,
    sequences: Sequence[Ids],
    positions: Sequence[Ids],
    tokens_per_batch: int = 16384,
    *,
    n_prompt: Sequence[int] | None = None,
    packing: bool = True,
) -> list[Floats]:
    """Logits of each sequence at its positions, in inference mode.

    This is the one place that decides how sequences share a forward pass: packed without padding, a prompt once
    for all sequences that begin with it; or, for a model that cannot be packed, by padded batches.

    Args:
        model: Any reward model.
        sequences: Token ids, one array a sequence.
        positions: Indices into them, at least one a sequence, not decreasing.
        tokens_per_batch: Tokens of one forward pass, padding included; halved on out-of-memory.
        n_prompt: Leading tokens of each sequence that others may begin with too; None shares nothing.
        packing: False pads, whatever the model.

    Returns:
        Float32 logits, one array a sequence, in the order of the input.

    Raises:
        UserError: A sequence does not fit the model's context, or memory does not hold even one.
    """
    # Attention is causal: what follows the last judged token cannot change a score.
    sequences = [ids[: places[-1] + 1] for ids, places in zip(sequences, positions, strict=True)]
    _check_context(model, sequences)
    shared = [0] * len(sequences) if n_prompt is None else n_prompt
    rows = [
        Row(ids.astype(np.int64), min(prompt, len(ids)), places.astype(np.int64))
        for ids, places, prompt in zip(sequences, positions, shared, strict=True)
    ]
    settings = TrainingConfig(tokens_per_microbatch=max(1, tokens_per_batch), packing=packing and _can_pack(model))
    runner = Runner([model.model], 0, settings)
    counts = [len(row.read) for row in rows]
    if not rows:
        return []
    logits = read_all(runner, rows, lambda batch: model.head_logits(runner.hidden(batch))).cpu().numpy()
    return np.split(logits, np.cumsum(counts)[:-1])


def _can_pack(model: RewardModel) -> bool:
    try:
        check_packable(model.model)
    except UserError:
        return False
    return True


def _prompt_lengths(sequences: pl.DataFrame, rollouts: pl.DataFrame) -> list[int]:
    lengths = rollouts.select("rollout_id", n_prompt=pl.col("prompt_token_ids").list.len())
    return (
        sequences.select("rollout_id")
        .join(lengths, on="rollout_id", how="left", maintain_order="left")["n_prompt"]
        .to_list()
    )


def _check_context(model: RewardModel, sequences: Sequence[Ids]) -> None:
    limit = model.max_length
    longest = max((len(ids) for ids in sequences), default=0)
    if limit is not None and longest > limit:
        too_long = sum(len(ids) > limit for ids in sequences)
        raise UserError(
            f"{too_long} solutions do not fit the reward model's context of {limit} tokens (longest: {longest}); "
            "lower sampling.max_tokens or take a reward model with a longer context"
        )


def sigmoid(logits: Floats) -> Floats:
    """P = 1 / (1 + exp(-logit)) as float32, for logits of any size."""
    # In double precision through tanh, which overflows at neither end.
    return (0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64)))).astype(np.float32)


def _arrays(column: pl.Series) -> list[Ids]:
    """A list column as one int32 array a row, without a copy of each."""
    flat = column.explode().to_numpy()
    return np.split(flat, np.cumsum(column.list.len().to_numpy())[:-1]) if len(column) else []
