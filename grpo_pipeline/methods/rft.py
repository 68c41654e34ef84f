"""RFT: rejection-sampling fine-tuning (Yuan et al. 2023, arXiv 2308.01825; METHOD 5).

Data: responses that the fixed SFT model sampled once. Reward: the checker's verdict. Coefficient: 1 if correct
else 0.
"""

from torch import Tensor

from grpo_pipeline.methods.base import DataSource, MethodLoss, RewardSource, TokenBatch
from grpo_pipeline.methods.sft import likelihood_loss
from grpo_pipeline.methods.weights import Normalisation


class Rft:
    """Likelihood of the correct responses; a wrong one still counts in the mean over responses, with 0."""

    name = "rft"
    data: DataSource = "fixed_samples"
    reward: RewardSource = "rule"
    needs_reference = False
    needs_critic = False
    normalisation: Normalisation = "grpo"

    def loss(self, batch: TokenBatch) -> MethodLoss:
        """-sum_t weights_t r_t log pi_t, r the reward (0 or 1) of the token's rollout."""
        return likelihood_loss(batch, self.coefficient(batch))

    def coefficient(self, batch: TokenBatch) -> Tensor:
        """(N,) the reward of each token's rollout, which `TokenBatch.advantages` holds."""
        return batch.advantages
