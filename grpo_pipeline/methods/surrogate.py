"""The clipped surrogate objective that PPO and GRPO share (Schulman et al. 2017, eq. 7)."""

from typing import Literal

import torch
from torch import Tensor

from grpo_pipeline.methods.base import TokenBatch
from grpo_pipeline.methods.metrics import Metrics, mean_of


def importance_ratio(batch: TokenBatch, level: Literal["token", "sequence"] = "token") -> Tensor:
    """(N,) pi_theta / pi_old with its gradient; exactly 1 where the batch is on policy.

    `sequence` is GSPO's ratio, the geometric mean over the rollout's trained tokens, in the token form (Zheng
    et al. 2025, arXiv 2507.18071, eq. 14): its value is the sequence's, its gradient is s_i * grad log pi_t. For
    advantages that are constant within a rollout that is GSPO's own gradient; for process supervision it
    keeps each token's advantage at its own token.
    """
    current = batch.logprobs
    old = current.detach() if batch.old_logprobs is None else batch.old_logprobs
    if level == "token":
        return torch.exp(current - old)
    mean = batch.row_sums(current.detach() - old) / batch.row_lengths()
    return torch.exp(mean[batch.row] + current - current.detach())


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """(N,) min[ratio A, clip(ratio, 1 - low, 1 + high) A], to be maximised."""
    return torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def clipped_tokens(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Two (N,) bool tensors: where the lower and where the upper clip has cut the gradient off."""
    return (ratio < 1 - low) & (advantages < 0), (ratio > 1 + high) & (advantages > 0)


def surrogate_coefficient(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """(N,) the surrogate's derivative by log pi_t: ratio A, and 0 where it is clipped."""
    is_low, is_high = clipped_tokens(ratio, advantages, low, high)
    return torch.where(is_low | is_high, 0, ratio * advantages).detach()


def clip_metrics(ratio: Tensor, advantages: Tensor, low: float, high: float, trained: Tensor) -> Metrics:
    """TRL's clip_ratio metrics: shares of trained tokens whose gradient the clip has cut off."""
    is_low, is_high = clipped_tokens(ratio, advantages, low, high)
    dtype = ratio.dtype
    return {
        "clip_ratio/low_mean": mean_of(is_low.to(dtype), trained),
        "clip_ratio/high_mean": mean_of(is_high.to(dtype), trained),
        "clip_ratio/region_mean": mean_of((is_low | is_high).to(dtype), trained),
    }
