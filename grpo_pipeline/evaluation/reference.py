"""How far a policy has moved from its reference, measured on the policy's own samples."""

from pathlib import Path

import polars as pl
import torch

from grpo_pipeline.config import ModelConfig, TrainingConfig
from grpo_pipeline.methods.kl import k3
from grpo_pipeline.training.actor import Actor
from grpo_pipeline.training.batching import response_row
from grpo_pipeline.training.token_rows import TokenRows


def reference_kl(
    rollouts: pl.DataFrame, reference_dir: Path, place: ModelConfig, training: TrainingConfig
) -> pl.DataFrame:
    """KL(policy || reference) per token, by the k3 estimator, averaged over a problem's response tokens.

    The policy's log-probabilities are those that were stored with the samples, so the policy itself is not loaded.

    Args:
        rollouts: `rollouts` columns, sampled at one temperature above 0 and with top_p = 1: only then is the
            estimator unbiased.
        reference_dir: The reference's folder.
        place: How it is loaded.
        training: Layout and token budget of its forward passes.

    Returns:
        problem_id, value (nats a token); a problem whose responses are all empty is left out.

    Raises:
        ValueError: For rollouts that were sampled otherwise.
    """
    how = rollouts.select("temperature", "top_p").unique().rows()
    if len(how) != 1 or not how[0][0] > 0 or how[0][1] != 1:
        raise ValueError(f"the KL needs samples of one temperature above 0 with top_p = 1, got {how}")
    table = rollouts.filter(pl.col("token_ids").list.len() > 0)
    actor = Actor(reference_dir, place, training)
    runner = actor.runner()
    pairs = table.select("prompt_token_ids", "token_ids").iter_rows()
    data = TokenRows([response_row(prompt, response) for prompt, response in pairs], runner.device)
    reference = actor.read_logprobs(runner, data, float(how[0][0])).cpu()
    policy = torch.tensor(table["logprobs"].explode(empty_as_null=False).to_list(), dtype=torch.float32)
    tokens = table.select("problem_id", "token_ids").explode("token_ids")
    return (
        tokens.select("problem_id", value=pl.Series(k3(policy, reference).double().numpy()))
        .group_by("problem_id")
        .agg(pl.col("value").mean())
        .sort("problem_id")
    )
