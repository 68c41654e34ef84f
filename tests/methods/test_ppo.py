"""PPO's critic loss, rewards, running statistics and KL coefficient by hand."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from grpo_pipeline.config import PpoConfig
from grpo_pipeline.methods.base import TokenBatch
from grpo_pipeline.methods.kl_control import KlCoefficient
from grpo_pipeline.methods.metrics import metric_means
from grpo_pipeline.methods.ppo import Ppo
from grpo_pipeline.methods.ppo_rewards import response_kl, token_rewards
from grpo_pipeline.methods.running import RunningStatistics


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def critic_batch(values, old_values, returns):
    n = len(values)
    return TokenBatch(
        logprobs=torch.full((n,), -1.0, dtype=torch.float64, requires_grad=True),
        weights=torch.full((n,), 1 / n, dtype=torch.float64),
        row=torch.zeros(n, dtype=torch.int64),
        advantages=torch.zeros(n, dtype=torch.float64),
        values=tensor(*values).requires_grad_(),
        old_values=tensor(*old_values),
        returns=tensor(*returns),
    )


def test_clipped_value_loss_by_hand():
    # eps_v 0.2. (1) within the range: (0.1 - 1)^2. (2) moved 0.5 towards the return, counted as if 0.2:
    # (0.2 - 1)^2, no gradient. (3) moved 0.5 away from it: (-0.5 - 1)^2 is the larger, with its gradient.
    batch = critic_batch([0.1, 0.5, -0.5], [0, 0, 0], [1, 1, 1])
    result = Ppo(PpoConfig(value_epsilon=0.2, value_weight=0.5)).critic_loss(batch)
    assert result.loss.item() == pytest.approx(0.5 * (0.81 + 0.64 + 2.25) / 3, abs=1e-12)
    (gradient,) = torch.autograd.grad(result.loss, batch.values)
    assert gradient.tolist() == pytest.approx([-0.9 / 3, 0, -1.5 / 3], abs=1e-12)
    assert metric_means(result.metrics) == pytest.approx(
        {"value/mean": 0.1 / 3, "loss/value": (0.81 + 0.25 + 2.25) / 3, "value/clip_ratio": 1 / 3}
    )


def test_rounding_is_not_counted_as_clipping():
    """In float32 old + (V - old) is seldom V; within the range nothing is clipped all the same."""
    generator = torch.Generator().manual_seed(0)
    old = 3 * torch.randn(500, generator=generator)
    values = old + 0.19 * (2 * torch.rand(500, generator=generator) - 1)
    batch = TokenBatch(
        logprobs=torch.zeros(500),
        weights=torch.full((500,), 1 / 500),
        row=torch.zeros(500, dtype=torch.int64),
        advantages=torch.zeros(500),
        values=values,
        old_values=old,
        returns=torch.zeros(500),
    )
    metrics = metric_means(Ppo(PpoConfig(value_epsilon=0.2)).critic_loss(batch).metrics)
    assert metrics["value/clip_ratio"] == 0


def test_without_value_clipping_it_is_the_squared_error():
    batch = critic_batch([0.5, 2.0], [0, 0], [1, 1])
    loss = Ppo(PpoConfig(value_epsilon=None, value_weight=1.0)).critic_loss(batch).loss
    assert loss.item() == pytest.approx((0.25 + 1) / 2, abs=1e-12)


def test_the_loss_is_policy_plus_critic_and_the_warm_up_leaves_the_policy_alone():
    batch = critic_batch([0.1], [0.0], [1.0])
    batch.advantages[0] = 3.0
    method = Ppo(PpoConfig(value_weight=0.5))
    assert method.loss(batch).loss.item() == pytest.approx(-3 + 0.5 * 0.81, abs=1e-12)
    assert torch.autograd.grad(method.critic_loss(batch).loss, batch.logprobs, allow_unused=True) == (None,)


def test_a_missing_critic_is_named():
    batch = TokenBatch(tensor(-1), tensor(1), torch.tensor([0]), tensor(0))
    with pytest.raises(ValueError, match=r"ppo needs TokenBatch\.values"):
        Ppo(PpoConfig()).loss(batch)


def test_token_rewards_by_hand():
    row = torch.tensor([0, 0, 0, 1, 2, 2])
    logprobs, reference = tensor(-1, -2, -3, -1, -1, -1), tensor(-1.5, -1, -3, -2, -1, -1)
    rewards = token_rewards(tensor(1, -1, 0.5), row, logprobs, reference, kl_coef=0.1)
    assert rewards.tolist() == pytest.approx([-0.05, 0.1, 1, -1.1, 0, 0.5], abs=1e-12)
    assert token_rewards(tensor(1, -1, 0.5), row, logprobs, None, kl_coef=0.0).tolist() == [0, 0, 1, -1, 0, 0.5]
    assert response_kl(logprobs, reference, 3) == pytest.approx((0.5 - 1 + 0 + 1) / 3)


def test_token_rewards_refuse_an_undecided_score_and_a_missing_reference():
    row, logprobs = torch.tensor([0, 1]), tensor(-1, -1)
    with pytest.raises(ValueError, match="rollout 1 is NaN"):
        token_rewards(tensor(1, math.nan), row, logprobs, logprobs, kl_coef=0.1)
    with pytest.raises(ValueError, match="needs ref_logprobs"):
        token_rewards(tensor(1, 0), row, logprobs, None, kl_coef=0.1)


BATCHES = st.lists(st.lists(st.floats(-100, 100), max_size=8), max_size=6)


@settings(deadline=None)
@given(BATCHES)
def test_running_statistics_are_numpys_over_everything_seen(batches):
    running = RunningStatistics()
    for batch in batches:
        running.update(torch.tensor(batch, dtype=torch.float64))
    seen = [x for batch in batches for x in batch]
    assert running.count == len(seen)
    assert running.mean == pytest.approx(np.mean(seen) if seen else 0, abs=1e-9)
    assert running.std == pytest.approx(np.std(seen, ddof=1) if len(seen) > 1 else 0, abs=1e-6)


def test_rewards_are_normalised_clipped_and_resumed():
    running = RunningStatistics()
    running.update(tensor(0, 1, 1, 0))  # mean 1/2, std sqrt(1/3)
    unit = 0.5 / (3**-0.5 + 1e-4)
    assert running.normalise(tensor(0, 1), None).tolist() == pytest.approx([-unit, unit], abs=1e-12)
    assert running.normalise(tensor(-99, 0.5, 99), 5.0).tolist() == [-5, 0, 5]
    resumed = RunningStatistics()
    resumed.load_state_dict(json.loads(json.dumps(running.state_dict())))
    for statistics in (running, resumed):
        statistics.update(tensor(0.3, 0.7, 0.1))
    assert vars(resumed) == vars(running)


def test_running_statistics_of_equal_rewards_give_zero_and_nan_is_refused():
    running = RunningStatistics()
    running.update(tensor(1, 1, 1))
    assert running.normalise(tensor(1, 1), 5.0).tolist() == [0, 0]
    with pytest.raises(ValueError, match="NaN"):
        running.update(tensor(1, math.nan))


def test_kl_coefficient():
    fixed = KlCoefficient.from_config(PpoConfig(kl_coef=0.04))
    fixed.update(100.0, 64)
    assert fixed.value == 0.04
    adaptive = KlCoefficient.from_config(PpoConfig(kl_coef=0.1, kl_target=6.0, kl_horizon=1000))
    adaptive.update(6.6, 100)  # e = 0.1
    assert adaptive.value == pytest.approx(0.1 * 1.01)
    adaptive.update(60.0, 100)  # e cut to 0.2
    assert adaptive.value == pytest.approx(0.1 * 1.01 * 1.02)
    adaptive.update(0.0, 100)  # e cut to -0.2
    assert adaptive.value == pytest.approx(0.1 * 1.01 * 1.02 * 0.98)
    resumed = KlCoefficient.from_config(PpoConfig(kl_coef=0.1, kl_target=6.0, kl_horizon=1000))
    resumed.load_state_dict(json.loads(json.dumps(adaptive.state_dict())))
    assert resumed.value == adaptive.value


def test_an_adaptive_coefficient_cannot_start_from_zero():
    with pytest.raises(ValidationError, match="kl_target needs kl_coef"):
        PpoConfig(kl_coef=0.0, kl_target=6.0)
