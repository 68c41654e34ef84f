"""GRPO: a group's own statistics instead of a critic (Shao et al. 2024, arXiv 2402.03300, section 4.1; METHOD 4).

Data: groups of rollouts of the current policy. Reward: the configured ones (rule, ORM, PRM), turned into
token advantages by `grpo_pipeline.advantages`. Loss: the clipped surrogate less beta times the k3 KL to the
reference. Coefficient at the update's start: A + beta (pi_ref / pi_theta - 1).
"""

import torch
from torch import Tensor

from grpo_pipeline.config import GrpoConfig
from grpo_pipeline.methods.base import DataSource, MethodLoss, RewardSource, TokenBatch
from grpo_pipeline.methods.kl import k3
from grpo_pipeline.methods.metrics import Metrics, mean_of
from grpo_pipeline.methods.surrogate import (
    clip_metrics,
    clipped_surrogate,
    importance_ratio,
    surrogate_coefficient,
)
from grpo_pipeline.methods.weights import Normalisation


class Grpo:
    """GRPO with its published variants as settings of `GrpoConfig`.

    `loss_type` acts through the weights (`normalisation`), `mask_truncated` through the mask that they are
    made from (`weights.mask_truncated`), `supervision` and `scale_rewards` through the advantages.
    """

    name = "grpo"
    data: DataSource = "on_policy"
    reward: RewardSource = "rewards"
    needs_critic = False

    def __init__(self, config: GrpoConfig) -> None:
        self.config = config
        self.low = config.epsilon
        self.high = config.epsilon if config.epsilon_high is None else config.epsilon_high

    @property
    def needs_reference(self) -> bool:
        """Only where beta > 0."""
        return self.config.beta > 0

    @property
    def normalisation(self) -> Normalisation:
        """The configured loss type."""
        return self.config.loss_type

    def loss(self, batch: TokenBatch) -> MethodLoss:
        """-sum_t weights_t (c_t min[rho_t A_t, clip(rho_t) A_t] - beta k3_t); c is the sampler's correction, else 1."""
        ratio = importance_ratio(batch, self.config.ratio)
        objective = clipped_surrogate(ratio, batch.advantages, self.low, self.high) * self._correction(batch)
        metrics = clip_metrics(ratio.detach(), batch.advantages, self.low, self.high, batch.trained)
        if self.needs_reference:
            kl = k3(batch.logprobs, batch.require("ref_logprobs", self.name))
            if self.config.unbiased_kl:
                kl = kl * importance_ratio(batch)
            objective = objective - self.config.beta * kl
            metrics["kl"] = mean_of(kl, batch.trained)
        metrics |= self._sampler_metrics(batch)
        if batch.entropy is not None:
            metrics["entropy"] = mean_of(batch.entropy, batch.trained)
        return MethodLoss(-(batch.weights * objective).sum(), metrics)

    def coefficient(self, batch: TokenBatch) -> Tensor:
        """(N,) c_t rho_t A_t (0 where clipped) + beta (pi_ref / pi_theta - 1).

        With `unbiased_kl` the last term is -beta rho_t log(pi_theta / pi_ref): the derivative of rho k3, whose
        expectation over pi_old is the gradient of the reverse KL (DeepSeek-V3.2, arXiv 2512.02556).
        """
        ratio = importance_ratio(batch, self.config.ratio)
        result = surrogate_coefficient(ratio, batch.advantages, self.low, self.high) * self._correction(batch)
        if self.needs_reference:
            distance = batch.logprobs.detach() - batch.require("ref_logprobs", self.name)
            pull = -importance_ratio(batch).detach() * distance if self.config.unbiased_kl else torch.expm1(-distance)
            result = result + self.config.beta * pull
        return result

    def _correction(self, batch: TokenBatch) -> Tensor:
        """(N,) weight of each token's surrogate for the distance between the sampler and the trainer.

        The sampler's arithmetic differs from the trainer's, so tokens were drawn from pi_sampler, not pi_old;
        pi_old / pi_sampler corrects for it, cut at `importance_cap` (truncated importance sampling) or, with
        `mask`, dropped above it.
        """
        kind = self.config.importance_correction
        if kind == "none":
            return torch.ones_like(batch.weights)
        weight = torch.exp(_sampler_log_ratio(batch, batch.require("sampler_logprobs", "importance_correction")))
        cap = self.config.importance_cap
        return weight.clamp(max=cap) if kind == "truncate" else torch.where(weight > cap, 0, weight)

    def _sampler_metrics(self, batch: TokenBatch) -> Metrics:
        if batch.sampler_logprobs is None:
            return {}
        distance = _sampler_log_ratio(batch, batch.sampler_logprobs).abs()
        metrics = {"sampling/sampling_logp_difference/mean": mean_of(distance, batch.trained)}
        if self.config.importance_correction != "none":
            metrics["sampling/importance_sampling_ratio/mean"] = mean_of(self._correction(batch), batch.trained)
        return metrics


def _sampler_log_ratio(batch: TokenBatch, sampler: Tensor) -> Tensor:
    """(N,) log pi_old - log pi_sampler."""
    old = batch.logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
    return old - sampler
