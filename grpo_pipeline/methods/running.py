"""Reward normalisation and clipping by running statistics, for PPO.

Zheng et al. 2023, "Secrets of RLHF in Large Language Models Part I" (arXiv 2307.04964), section 5.3.1:
clip((r - mean) / std, -c, c), mean and std over all rewards seen so far.
"""

from typing import TypedDict

import torch
from torch import Tensor


class RunningState(TypedDict):
    """State of `RunningStatistics`, for checkpoints."""

    count: int
    mean: float
    squares: float


class RunningStatistics:
    """Mean and standard deviation of all numbers seen, merged batch by batch (Chan et al. 1983).

    Feed it the rewards of all ranks, so that every rank divides by the same number.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0  # sum of squared distances from the mean

    def update(self, values: Tensor) -> None:
        """Take in a batch of numbers (any shape).

        Raises:
            ValueError: For a NaN or infinite number; leave undecided rewards out.
        """
        batch = values.detach().double().flatten()
        if not torch.isfinite(batch).all():
            raise ValueError("RunningStatistics.update: a reward is NaN or infinite; leave undecided rewards out")
        if not batch.numel():
            return
        count, mean = batch.numel(), batch.mean().item()
        squares = (batch - mean).square().sum().item()
        total, distance = self.count + count, mean - self.mean
        self.squares += squares + distance**2 * self.count * count / total
        self.mean += distance * count / total
        self.count = total

    @property
    def std(self) -> float:
        """Sample standard deviation (n - 1); 0 for fewer than two numbers."""
        return (self.squares / (self.count - 1)) ** 0.5 if self.count > 1 else 0.0

    def normalise(self, values: Tensor, clip: float | None, *, eps: float = 1e-4) -> Tensor:
        """(values - mean) / (std + eps), cut to [-clip, clip]; where all numbers were equal so far, 0 for them."""
        normalised = (values - self.mean) / (self.std + eps)
        return normalised if clip is None else normalised.clamp(-clip, clip)

    def state_dict(self) -> RunningState:
        """Everything that `load_state_dict` needs to go on with the same numbers."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: RunningState) -> None:
        """Go on from a state."""
        self.count, self.mean, self.squares = state["count"], state["mean"], state["squares"]
