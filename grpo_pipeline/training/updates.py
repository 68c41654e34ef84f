"""From experience to optimizer steps: token columns, weights, and the loss of a micro-batch."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from grpo_pipeline.advantages import token_advantages
from grpo_pipeline.methods.base import Method, MethodLoss, TokenBatch
from grpo_pipeline.methods.metrics import mean_of
from grpo_pipeline.methods.weights import mask_truncated, token_weights
from grpo_pipeline.training.actor import Actor
from grpo_pipeline.training.batching import response_row
from grpo_pipeline.training.critic import CRITIC, Critic
from grpo_pipeline.training.exploration import Experience
from grpo_pipeline.training.layouts import MicroBatch
from grpo_pipeline.training.loop import LossOf
from grpo_pipeline.training.runner import Runner
from grpo_pipeline.training.token_rows import TokenRows

_COLUMNS = {field.name for field in fields(TokenBatch)} - {"logprobs", "row", "values", "entropy"}


def experience_rows(experience: Experience, method: Method, device: torch.device) -> tuple[TokenRows, pl.DataFrame]:
    """Rows of an exploration step with sampler_logprobs, and advantages where the method has them by now.

    Rollouts without a single token cannot be trained on and are left out. Methods without groups leave undecided
    ones out too: a missing reward has no place in PPO's returns, and is no 0 in Online RFT's mean.

    Returns:
        The rows, and for each the columns rollout_id, problem_id, finish_reason, outcome_reward.
    """
    ends = experience.steps.sort("rollout_id", "step_index").group_by("rollout_id").agg("token_end")
    table = (
        experience.rollouts.join(
            experience.advantages.drop("problem_id", "step"), on="rollout_id", how="left", maintain_order="left"
        )
        .join(ends, on="rollout_id", how="left", maintain_order="left")
        .filter(pl.col("token_ids").list.len() > 0)
    )
    if method.needs_critic or method.reward == "rule":
        table = table.filter(pl.col("outcome_reward").is_not_null())
    columns = table.select("prompt_token_ids", "token_ids").iter_rows()
    data = TokenRows([response_row(prompt, response) for prompt, response in columns], device)
    data.columns["sampler_logprobs"] = _flat(table["logprobs"].explode(empty_as_null=False).to_numpy(), device)
    if not method.needs_critic:
        pieces = [
            token_advantages(values, token_ends or [], n)
            for values, token_ends, n in table.select(
                "step_advantages", "token_end", pl.col("token_ids").list.len()
            ).iter_rows()
        ]
        data.columns["advantages"] = _flat(np.concatenate(pieces) if pieces else np.empty(0), device)
    return data, table.select("rollout_id", "problem_id", "finish_reason", "outcome_reward")


def add_weights(
    data: TokenRows, method: Method, *, groups: Sequence[str] | None, truncated: Sequence[bool] | None, max_tokens: int
) -> None:
    """Each token's share in the whole optimizer step's loss, as a column.

    Args:
        data: All rows of the step.
        method: Says how the loss is shared out.
        groups: The problem of each row; None for equal groups.
        truncated: Rows that are left out of the loss; None for none.
        max_tokens: Longest possible response.
    """
    mask = torch.ones_like(data.row, dtype=torch.bool)
    if truncated is not None:
        mask = mask_truncated(mask, data.row, torch.tensor(list(truncated), dtype=torch.bool, device=data.device))
    lengths = torch.bincount(data.row[mask], minlength=len(data.rows))
    codes = None
    if groups is not None:
        _, numbers = np.unique(np.asarray(groups), return_inverse=True)
        codes = torch.from_numpy(numbers.astype(np.int64)).to(data.device)
    data.columns["weights"] = token_weights(
        lengths, data.row, mask, method.normalisation, groups=codes, max_tokens=max_tokens
    )


def rewarded_rows(data: TokenRows) -> list[int]:
    """Rows with a positive reward: the others have coefficient 0, so running them would change nothing."""
    positive = (data.columns["advantages"] > 0).to(torch.int64)
    counts = torch.bincount(data.row, weights=positive.double(), minlength=len(data.rows))
    return [i for i, count in enumerate(counts.tolist()) if count > 0]


def policy_loss(
    actor: Actor,
    runner: Runner,
    data: TokenRows,
    loss: Callable[[TokenBatch], MethodLoss],
    *,
    temperature: float,
    critic: Critic | None = None,
) -> LossOf:
    """The loss of a micro-batch of responses under the policy (and the critic)."""

    def loss_of(batch: MicroBatch) -> MethodLoss:
        targets, columns = data.take(batch.rows)
        logprobs, entropy = runner.read(batch, lambda states: actor.logprobs(states, targets, temperature))
        values = runner.read(batch, critic.values, CRITIC) if critic else None
        tokens = _token_batch(logprobs, batch.row, columns, values=values, entropy=entropy)
        result = loss(tokens)
        if tokens.sampler_logprobs is not None and "sampling/sampling_logp_difference/mean" not in result.metrics:
            old = logprobs.detach() if tokens.old_logprobs is None else tokens.old_logprobs
            result.metrics["sampling/sampling_logp_difference/mean"] = mean_of(
                (old - tokens.sampler_logprobs).abs(), tokens.trained
            )
        return result

    return loss_of


def critic_loss(critic: Critic, runner: Runner, data: TokenRows, loss: Callable[[TokenBatch], MethodLoss]) -> LossOf:
    """The loss of a micro-batch under the critic alone (its warm-up): the policy is not run."""

    def loss_of(batch: MicroBatch) -> MethodLoss:
        _, columns = data.take(batch.rows)
        values = runner.read(batch, critic.values, CRITIC)
        return loss(_token_batch(columns["old_logprobs"], batch.row, columns, values=values))

    return loss_of


def _token_batch(logprobs: Tensor, row: Tensor, columns: dict[str, Tensor], **further: Any) -> TokenBatch:
    known = {name: column for name, column in columns.items() if name in _COLUMNS}
    known.setdefault("advantages", torch.zeros_like(known["weights"]))
    return TokenBatch(logprobs=logprobs, row=row, **known, **further)


def _flat(values: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float32)).to(device)
