"""The coefficient eta of the KL in PPO's reward: fixed, or adapted to a target (Ziegler et al. 2019, section 2.2).

The adaptive controller multiplies eta by 1 + e n / horizon after n rollouts with mean KL k, where e is
k / target - 1 cut to [-0.2, 0.2]. KL here is of a whole response: the sum over its tokens of
log pi - log pi_ref, averaged over rollouts (arXiv 1909.08593).
"""

from typing import TypedDict

from grpo_pipeline.config import PpoConfig


class KlState(TypedDict):
    """State of a `KlCoefficient`, for checkpoints."""

    value: float


class KlCoefficient:
    """eta: fixed where the target is None, else adaptive.

    Attributes:
        value: The coefficient to use now.
    """

    def __init__(self, value: float, *, target: float | None = None, horizon: int = 10_000) -> None:
        self.value = value
        self.target = target
        self.horizon = horizon

    @classmethod
    def from_config(cls, config: PpoConfig) -> "KlCoefficient":
        """The configured coefficient."""
        return cls(config.kl_coef, target=config.kl_target, horizon=config.kl_horizon)

    def update(self, kl: float, n_rollouts: int) -> None:
        """Take in the mean KL of a response (nats, summed over its tokens) over `n_rollouts` rollouts."""
        if self.target is None:
            return
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.value *= 1 + error * n_rollouts / self.horizon

    def state_dict(self) -> KlState:
        """The coefficient as it stands."""
        return {"value": self.value}

    def load_state_dict(self, state: KlState) -> None:
        """Go on from a state."""
        self.value = state["value"]
