"""SFT: maximum likelihood of demonstrations (METHOD 5).

Data: questions and responses of a demonstration set. Reward: 1 for all. Coefficient: 1.
"""

import torch
from torch import Tensor

from grpo_pipeline.methods.base import DataSource, MethodLoss, RewardSource, TokenBatch
from grpo_pipeline.methods.metrics import mean_of
from grpo_pipeline.methods.weights import Normalisation


class Sft:
    """Supervised fine-tuning: every demonstration counts the same, whatever its length."""

    name = "sft"
    data: DataSource = "demonstrations"
    reward: RewardSource = "ones"
    needs_reference = False
    needs_critic = False
    normalisation: Normalisation = "grpo"

    def loss(self, batch: TokenBatch) -> MethodLoss:
        """-sum_t weights_t log pi_t."""
        return likelihood_loss(batch, self.coefficient(batch))

    def coefficient(self, batch: TokenBatch) -> Tensor:
        """(N,) ones."""
        return torch.ones_like(batch.weights)


def likelihood_loss(batch: TokenBatch, coefficient: Tensor) -> MethodLoss:
    """-sum_t weights_t coefficient_t log pi_t, for methods whose coefficient does not depend on pi (SFT, RFT).

    Metrics: `nll`, the mean of -log pi over tokens with a positive coefficient (its exp is the perplexity), and
    `entropy` where the batch has it.
    """
    metrics = {"nll": mean_of(-batch.logprobs, batch.trained & (coefficient > 0))}
    if batch.entropy is not None:
        metrics["entropy"] = mean_of(batch.entropy, batch.trained)
    return MethodLoss(-(batch.weights * coefficient * batch.logprobs).sum(), metrics)
