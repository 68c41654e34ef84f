"""What a training method is: a data source, a reward, a loss and its gradient coefficient.

All losses work on *response tokens only, flat*: N tokens of R rollouts in one vector, padding-free, with
`row` saying whose token it is. The share of each token in the optimizer step's loss is in `weights`, worked
out once for the whole optimizer step (`methods.weights`), so that micro-batches, gradient accumulation and
data parallelism only ever add up. A rollout is never split over two micro-batches, nor is a DPO pair.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from grpo_pipeline.methods.metrics import Metrics
from grpo_pipeline.methods.weights import Normalisation

DataSource = Literal["demonstrations", "fixed_samples", "pairs", "on_policy"]
"""Where a method's responses come from (METHOD 5, column "data source")."""

RewardSource = Literal["ones", "rule", "preference", "rewards"]
"""Which reward it asks for: all 1, the checker's verdict, a preference, or the configured rewards."""


@dataclass(frozen=True)
class TokenBatch:
    """Response tokens of a micro-batch, flat. N tokens, R rows (rollouts).

    Attributes:
        logprobs: (N,) log pi_theta of each sampled token at the sampling temperature; carries the gradient.
        weights: (N,) share of each token in the whole optimizer step's loss; 0 is not trained.
        row: (N,) int64 in [0, R), non-decreasing: which rollout a token belongs to. DPO reads rows 2p and
            2p + 1 as the chosen and the rejected response of pair p.
        advantages: (N,) advantage of each token; for RFT and Online RFT the reward of its rollout; SFT and
            DPO do not read it.
        old_logprobs: (N,) log pi_old; None where the batch is exactly on policy (the ratio is then 1).
        ref_logprobs: (N,) log pi_ref; None where no reference is used.
        sampler_logprobs: (N,) what the rollout engine said; None where neither a correction nor the metric
            of its distance to the trainer's own is wanted.
        values: (N,) critic's value, with gradient (PPO).
        old_values: (N,) critic's value before the update (PPO).
        returns: (N,) targets of the critic (PPO).
        entropy: (N,) entropy of the policy at each token, detached; a metric only.
    """

    logprobs: Tensor
    weights: Tensor
    row: Tensor
    advantages: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    sampler_logprobs: Tensor | None = None
    values: Tensor | None = None
    old_values: Tensor | None = None
    returns: Tensor | None = None
    entropy: Tensor | None = None

    @property
    def trained(self) -> Tensor:
        """(N,) bool: the tokens that the loss counts."""
        return self.weights > 0

    @property
    def n_rows(self) -> int:
        """R, from the last token's row (one device synchronisation on a GPU)."""
        return int(self.row[-1]) + 1 if self.row.numel() else 0

    def row_sums(self, values: Tensor) -> Tensor:
        """(R,) sum of `values` (N,) over the trained tokens of each row."""
        counted = torch.where(self.trained, values, 0)
        return torch.zeros(self.n_rows, dtype=values.dtype, device=values.device).index_add(0, self.row, counted)

    def row_lengths(self) -> Tensor:
        """(R,) number of trained tokens of each row, at least 1, in the weights' type."""
        return self.row_sums(torch.ones_like(self.weights)).clamp(min=1)

    def require(self, name: str, method: str) -> Tensor:
        """The optional tensor `name`.

        Raises:
            ValueError: Where the batch was built without it.
        """
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise ValueError(f"{method} needs TokenBatch.{name}, and the batch was built without it")
        return value


@dataclass(frozen=True)
class MethodLoss:
    """A micro-batch's part of the optimizer step's loss.

    Attributes:
        loss: scalar to be minimised, to be summed (not averaged) over micro-batches and ranks.
        metrics: name -> (2,) detached tensor [sum, count], named as TRL names them; both add up over
            micro-batches and ranks, and the metric is their quotient (`metrics.add_metrics`, `metric_means`).
    """

    loss: Tensor
    metrics: Metrics = field(default_factory=dict)


class Method(Protocol):
    """One training method. Adding one is a file with such a class, its test, and a line in the registry."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        ...

    @property
    def data(self) -> DataSource:
        """Where its responses come from."""
        ...

    @property
    def reward(self) -> RewardSource:
        """Which reward it asks for."""
        ...

    @property
    def needs_reference(self) -> bool:
        """Whether TokenBatch.ref_logprobs must be there; without need the reference is never loaded."""
        ...

    @property
    def needs_critic(self) -> bool:
        """Whether TokenBatch.values, old_values and returns must be there."""
        ...

    @property
    def normalisation(self) -> Normalisation:
        """How `weights.token_weights` shares the loss out over tokens."""
        ...

    def loss(self, batch: TokenBatch) -> MethodLoss:
        """The loss of a micro-batch."""
        ...

    def coefficient(self, batch: TokenBatch) -> Tensor:
        """(N,) GC(q, o, t) at the batch's point: grad J = sum_t weights_t * GC_t * grad log pi_t."""
        ...
