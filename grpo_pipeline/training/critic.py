"""PPO's own state: the critic, the running reward statistics and the KL coefficient."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_pipeline.config import ModelConfig, PpoConfig, TrainingConfig
from grpo_pipeline.methods.gae import gae
from grpo_pipeline.methods.kl_control import KlCoefficient
from grpo_pipeline.methods.ppo_rewards import response_kl, token_rewards
from grpo_pipeline.methods.running import RunningStatistics
from grpo_pipeline.models.reward import RewardModel
from grpo_pipeline.seeds import derive_seed
from grpo_pipeline.training.adapters import add_adapters
from grpo_pipeline.training.layouts import MicroBatch
from grpo_pipeline.training.loop import read_all
from grpo_pipeline.training.optimizer import trainable_parameters
from grpo_pipeline.training.processes import ALONE, Processes
from grpo_pipeline.training.runner import Forward, Runner
from grpo_pipeline.training.token_rows import TokenRows

CRITIC = 1
"""Index of the critic among the runner's models; the policy is 0."""


class Critic:
    """A value model on the policy's backbone with a head of its own, and what PPO keeps between steps.

    Attributes:
        net: The value model; its logit at the token before is the value of the state in which a token is chosen.
        forward: How it is run.
        parameters: Name -> trainable parameter.
    """

    def __init__(
        self,
        folder: Path,
        place: ModelConfig,
        training: TrainingConfig,
        config: PpoConfig,
        seed: int,
        processes: Processes = ALONE,
    ) -> None:
        dtype = "float32" if place.dtype == "auto" else place.dtype
        self.net = RewardModel.from_policy(
            folder,
            "critic",
            derive_seed(seed, "critic"),
            dtype=dtype,
            device=processes.load_device(place.device),
            trust_remote_code=place.trust_remote_code,
        )
        if training.lora:
            add_adapters(self.net.model, training.lora, self.net.head, seed=seed)
        self.forward = Forward(self.net.model)
        processes.shard(self.forward)
        self.parameters = trainable_parameters(self.net)
        self._config = config
        self._rewards = RunningStatistics()
        self._kl = KlCoefficient.from_config(config)

    def values(self, hidden: Tensor) -> Tensor:
        """(N,) values of the critic's hidden states."""
        return self.net.head_logits(hidden)

    def read_values(self, runner: Runner, data: TokenRows) -> Tensor:
        """(N,) values under the present weights, without gradient."""

        def read(batch: MicroBatch) -> Tensor:
            return runner.read(batch, self.values, CRITIC)

        return read_all(runner, data.rows, read)

    def prepare(self, runner: Runner, data: TokenRows, rewards: Sequence[float]) -> dict[str, float]:
        """Advantages by GAE and returns into the columns; old_logprobs and ref_logprobs must be there.

        Args:
            runner: Runs the critic.
            data: R decided rollouts.
            rewards: (R,) their outcome rewards.

        Returns:
            Metrics: reward after normalisation, KL in the reward, its coefficient.
        """
        scores = torch.as_tensor(np.asarray(rewards), dtype=torch.float32, device=data.device)
        if self._config.normalise_rewards:
            self._rewards.update(scores)
            scores = self._rewards.normalise(scores, self._config.reward_clip)
        old, reference = data.columns["old_logprobs"], data.columns.get("ref_logprobs")
        per_token = token_rewards(scores, data.row, old, reference, kl_coef=self._kl.value)
        data.columns["old_values"] = self.read_values(runner, data)
        data.columns["advantages"], data.columns["returns"] = gae(
            per_token, data.columns["old_values"], data.row, gamma=self._config.gamma, lam=self._config.lam
        )
        metrics = {"reward_normalised": float(scores.mean()), "kl_coef": self._kl.value}
        if reference is not None:
            kl = response_kl(old, reference, len(data.rows))
            self._kl.update(kl, len(data.rows))
            metrics["objective/kl"] = kl
        return metrics

    def state(self) -> dict[str, Any]:
        """JSON state for a checkpoint, besides the weights."""
        return {"rewards": self._rewards.state_dict(), "kl": self._kl.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._rewards.load_state_dict(state["rewards"])
        self._kl.load_state_dict(state["kl"])
