"""PPO: clipped surrogate with a learned critic (Schulman et al. 2017, arXiv 1707.06347; METHOD 5).

Data: rollouts of the current policy, one or more a problem. Reward: the configured ones, normalised and clipped
by running statistics (`running`), less eta times the per-token KL to the reference (`ppo_rewards`,
`kl_control`). Coefficient at the update's start: A_t by GAE (`gae`). The critic learns the returns by a clipped
squared error; an optional ptx term keeps the likelihood of demonstrations up (Ouyang et al. 2022, arXiv
2203.02155, eq. 2).
"""

import torch
from torch import Tensor

from grpo_pipeline.config import PpoConfig
from grpo_pipeline.methods.base import DataSource, MethodLoss, RewardSource, TokenBatch
from grpo_pipeline.methods.metrics import mean_of
from grpo_pipeline.methods.sft import likelihood_loss
from grpo_pipeline.methods.surrogate import (
    clip_metrics,
    clipped_surrogate,
    importance_ratio,
    surrogate_coefficient,
)
from grpo_pipeline.methods.weights import Normalisation


class Ppo:
    """PPO for language models, the token as the action."""

    name = "ppo"
    data: DataSource = "on_policy"
    reward: RewardSource = "rewards"
    needs_critic = True
    normalisation: Normalisation = "grpo"

    def __init__(self, config: PpoConfig) -> None:
        self.config = config

    @property
    def needs_reference(self) -> bool:
        """Only where a KL is in the reward (an adaptive coefficient starts from kl_coef, and 0 would stay 0)."""
        return self.config.kl_coef > 0

    def loss(self, batch: TokenBatch) -> MethodLoss:
        """The policy's loss plus value_weight times the critic's (`critic_loss`)."""
        epsilon = self.config.epsilon
        ratio = importance_ratio(batch)
        surrogate = clipped_surrogate(ratio, batch.advantages, epsilon, epsilon)
        critic = self.critic_loss(batch)
        metrics = clip_metrics(ratio.detach(), batch.advantages, epsilon, epsilon, batch.trained) | critic.metrics
        if batch.entropy is not None:
            metrics["entropy"] = mean_of(batch.entropy, batch.trained)
        return MethodLoss(critic.loss - (batch.weights * surrogate).sum(), metrics)

    def critic_loss(self, batch: TokenBatch) -> MethodLoss:
        """value_weight sum_t weights_t max[(V - R)^2, (clip(V, V_old +- eps_v) - R)^2]; alone in the warm-up.

        The maximum keeps the critic from gaining by a step beyond the clip range; it is plain squared error
        where value_epsilon is null.
        """
        values = batch.require("values", self.name)
        returns = batch.require("returns", self.name)
        error = (values - returns).square()
        metrics = {"value/mean": mean_of(values, batch.trained), "loss/value": mean_of(error, batch.trained)}
        epsilon = self.config.value_epsilon
        if epsilon is not None:
            old_values = batch.require("old_values", self.name)
            clipped = old_values + (values - old_values).clamp(-epsilon, epsilon)
            clipped_error = (clipped - returns).square()
            # Inside the range old + (V - old) is V but for rounding, which must not count as clipped.
            outside = (values - old_values).abs() > epsilon
            is_clipped = (outside & (clipped_error > error)).to(error.dtype)
            metrics["value/clip_ratio"] = mean_of(is_clipped, batch.trained)
            error = torch.maximum(error, clipped_error)
        return MethodLoss(self.config.value_weight * (batch.weights * error).sum(), metrics)

    def demonstration_loss(self, batch: TokenBatch) -> MethodLoss:
        """-ptx_weight sum_t weights_t log pi_t, on a batch of demonstrations with weights of their own set."""
        likelihood = likelihood_loss(batch, torch.ones_like(batch.weights))
        return MethodLoss(self.config.ptx_weight * likelihood.loss, {"ptx/nll": likelihood.metrics["nll"]})

    def coefficient(self, batch: TokenBatch) -> Tensor:
        """(N,) rho_t A_t, 0 where clipped; the demonstrations' tokens have ptx_weight."""
        epsilon = self.config.epsilon
        return surrogate_coefficient(importance_ratio(batch), batch.advantages, epsilon, epsilon)
