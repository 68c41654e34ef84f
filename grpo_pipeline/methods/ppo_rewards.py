"""PPO's per-token reward: the response's score at its last token, less eta times the KL of every token.

r_t = [t is the last] r - eta (log pi_old(o_t) - log pi_ref(o_t)) (Ouyang et al. 2022, arXiv 2203.02155;
Shao et al. 2024, eq. 2).
"""

import torch
from torch import Tensor

from grpo_pipeline.methods.kl import k1


def token_rewards(
    scores: Tensor, row: Tensor, logprobs: Tensor, ref_logprobs: Tensor | None, *, kl_coef: float
) -> Tensor:
    """(N,) reward of each response token.

    Args:
        scores: (R,) reward of each rollout, after normalisation and clipping.
        row: (N,) int64 in [0, R), non-decreasing: whose token it is; N holds response tokens only.
        logprobs: (N,) log pi of the policy that sampled them, from the trainer, before the update.
        ref_logprobs: (N,) log pi_ref; None only where kl_coef is 0.
        kl_coef: eta >= 0.

    Raises:
        ValueError: For a NaN score (an undecided rollout has no place in PPO's batch: leave its tokens out), or
            a KL without a reference.
    """
    if torch.isnan(scores).any():
        index = int(torch.isnan(scores).nonzero()[0])
        raise ValueError(f"token_rewards: the score of rollout {index} is NaN; leave undecided rollouts out")
    rewards = torch.zeros_like(logprobs.detach())
    if kl_coef > 0:
        if ref_logprobs is None:
            raise ValueError("token_rewards: kl_coef > 0 needs ref_logprobs")
        rewards -= kl_coef * k1(logprobs.detach(), ref_logprobs)
    is_last = torch.ones_like(row, dtype=torch.bool)
    is_last[:-1] = row[1:] != row[:-1]
    rewards[is_last] += scores[row[is_last]].to(rewards.dtype)
    return rewards


def response_kl(logprobs: Tensor, ref_logprobs: Tensor, n_rollouts: int) -> float:
    """Mean over rollouts of the sum over tokens of log pi - log pi_ref (nats), as `KlCoefficient.update` takes it."""
    return k1(logprobs.detach(), ref_logprobs).double().sum().item() / max(n_rollouts, 1)
