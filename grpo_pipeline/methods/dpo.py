"""DPO: direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290; METHOD 5).

Data: pairs (o+, o-) sampled from the SFT model; rows 2p and 2p + 1 of the batch are the chosen and the rejected
response of pair p. Reward: a preference, by rule or by a reward model. Coefficient: beta sigma(-beta (R(o+) -
R(o-))), with a minus sign for o-. R is the sum of log pi_theta / pi_ref over the response's tokens, or their
mean in the length-normalised form.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from grpo_pipeline.config import DpoConfig
from grpo_pipeline.methods.base import DataSource, MethodLoss, RewardSource, TokenBatch
from grpo_pipeline.methods.metrics import mean_of
from grpo_pipeline.methods.weights import Normalisation


class Dpo:
    """The sigmoid loss of DPO, standard or length-normalised."""

    name = "dpo"
    data: DataSource = "pairs"
    reward: RewardSource = "preference"
    needs_reference = True
    needs_critic = False

    def __init__(self, config: DpoConfig) -> None:
        self.config = config

    @property
    def normalisation(self) -> Normalisation:
        """1/P for each token of P pairs, or 1/(P |o|) in the length-normalised form."""
        return "pair_mean" if self.config.length_normalised else "pair_sum"

    def loss(self, batch: TokenBatch) -> MethodLoss:
        """-sum_p (1/P) log sigma(beta (R(o+_p) - R(o-_p)))."""
        chosen, rejected = self._scores(batch, batch.logprobs).unbind(1)
        margin = chosen - rejected
        loss = -(self._pair_weights(batch) * logsigmoid(margin)).sum()
        logps = batch.row_sums(batch.logprobs.detach()).view(-1, 2)
        metrics = {
            "rewards/chosen": mean_of(chosen),
            "rewards/rejected": mean_of(rejected),
            "rewards/accuracies": mean_of((margin > 0).to(margin.dtype)),
            "rewards/margins": mean_of(margin),
            "logps/chosen": mean_of(logps[:, 0]),
            "logps/rejected": mean_of(logps[:, 1]),
        }
        if batch.entropy is not None:
            metrics["entropy"] = mean_of(batch.entropy, batch.trained)
        return MethodLoss(loss, metrics)

    def coefficient(self, batch: TokenBatch) -> Tensor:
        """(N,) +-beta sigma(-beta (R(o+) - R(o-)))."""
        chosen, rejected = self._scores(batch, batch.logprobs.detach()).unbind(1)
        strength = self.config.beta * torch.sigmoid(rejected - chosen)
        sign = 1 - 2 * (batch.row % 2)
        return strength[batch.row // 2] * sign

    def _scores(self, batch: TokenBatch, logprobs: Tensor) -> Tensor:
        """(P, 2) beta R of the chosen and the rejected response of each pair."""
        if batch.n_rows % 2:
            raise ValueError(f"dpo: rows come as pairs (chosen, rejected), got {batch.n_rows} rows in a micro-batch")
        rewards = batch.row_sums(logprobs - batch.require("ref_logprobs", self.name))
        if self.config.length_normalised:
            rewards = rewards / batch.row_lengths()
        return self.config.beta * rewards.view(-1, 2)

    def _pair_weights(self, batch: TokenBatch) -> Tensor:
        """(P,) the share of each pair in the step's loss: 1/P, read back from its chosen tokens' weights."""
        shares = batch.row_sums(batch.weights)
        if not self.config.length_normalised:
            shares = shares / batch.row_lengths()
        return shares.view(-1, 2)[:, 0]
