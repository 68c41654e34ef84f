"""METHOD 5: for each method, autograd's gradient is sum_t weights_t GC_t grad log pi_t, with GC from its table."""

import pytest
import torch

from grpo_pipeline.config import DpoConfig, GrpoConfig, MethodName, PolicyConfig, PpoConfig
from grpo_pipeline.methods.dpo import Dpo
from grpo_pipeline.methods.grpo import Grpo
from grpo_pipeline.methods.online_rft import OnlineRft
from grpo_pipeline.methods.ppo import Ppo
from grpo_pipeline.methods.registry import METHODS, make_method
from grpo_pipeline.methods.rft import Rft
from grpo_pipeline.methods.sft import Sft
from tests.methods.tiny_policy import TinyPolicy, assert_gradient

LENGTHS = [3, 1, 6, 2, 4, 5]
CUTS = [[6], [2, 4], [4, 2], [2, 2, 2]]


@pytest.fixture
def policy():
    return TinyPolicy(LENGTHS)


def by_row(values):
    return torch.repeat_interleave(torch.tensor(values, dtype=torch.float64), torch.tensor(LENGTHS))


@pytest.mark.parametrize("cut", CUTS)
def test_sft(policy, cut):
    coefficient = assert_gradient(Sft(), policy, policy.batch("grpo"), cut)
    assert torch.equal(coefficient, torch.ones(21, dtype=torch.float64))


@pytest.mark.parametrize("method", [Rft(), OnlineRft()])
@pytest.mark.parametrize("cut", CUTS)
def test_rft_and_online_rft(policy, method, cut):
    correct = by_row([1, 0, 0, 1, 1, 0])
    coefficient = assert_gradient(method, policy, policy.batch("grpo", advantages=correct), cut)
    assert torch.equal(coefficient, correct)


@pytest.mark.parametrize("length_normalised", [False, True])
@pytest.mark.parametrize("cut", CUTS)
def test_dpo(policy, length_normalised, cut):
    method = Dpo(DpoConfig(beta=0.3, length_normalised=length_normalised))
    reference = policy.other(0.4)
    coefficient = assert_gradient(
        method, policy, policy.batch(method.normalisation, ref_logprobs=reference.detach()), cut
    )
    # METHOD 5's line, term by term.
    log_ratio = (policy.logprobs() - reference).detach()
    rewards = [log_ratio[policy.row == i].sum() for i in range(6)]
    if length_normalised:
        rewards = [r / length for r, length in zip(rewards, LENGTHS, strict=True)]
    for pair in range(3):
        chosen, rejected = rewards[2 * pair], rewards[2 * pair + 1]
        strength = 0.3 / (1 + torch.exp(0.3 * (chosen - rejected)))
        torch.testing.assert_close(coefficient[policy.row == 2 * pair], strength.expand(LENGTHS[2 * pair]))
        torch.testing.assert_close(coefficient[policy.row == 2 * pair + 1], -strength.expand(LENGTHS[2 * pair + 1]))


def ppo_batch(policy, old=None):
    return policy.batch(
        "grpo",
        advantages=policy.noise(),
        old_logprobs=old,
        values=policy.noise(),
        old_values=policy.noise(),
        returns=policy.noise(),
    )


@pytest.mark.parametrize("cut", CUTS)
def test_ppo_at_the_start_of_the_update(policy, cut):
    batch = ppo_batch(policy)
    assert torch.equal(assert_gradient(Ppo(PpoConfig()), policy, batch, cut), batch.advantages)


def test_ppo_away_from_the_start(policy):
    batch = ppo_batch(policy, policy.other(0.3).detach())
    coefficient = assert_gradient(Ppo(PpoConfig(epsilon=0.2)), policy, batch, [2, 4])
    ratio = torch.exp(batch.logprobs - batch.old_logprobs).detach()
    clipped = ((ratio > 1.2) & (batch.advantages > 0)) | ((ratio < 0.8) & (batch.advantages < 0))
    assert 0 < clipped.sum() < len(clipped)
    torch.testing.assert_close(coefficient, torch.where(clipped, 0.0, ratio * batch.advantages))


def test_ppo_with_demonstrations_adds_their_likelihood_with_its_weight(policy):
    method = Ppo(PpoConfig(ptx_weight=0.7))
    rollouts, demonstrations = ppo_batch(policy), policy.batch("grpo")
    loss = method.loss(rollouts).loss + method.demonstration_loss(demonstrations).loss
    (gradient,) = torch.autograd.grad(loss, policy.matrix)
    expected = policy.gradient_by_hand(rollouts.weights * rollouts.advantages + 0.7 * demonstrations.weights)
    torch.testing.assert_close(-gradient, expected, rtol=0, atol=1e-8)


GRPO_SETTINGS = [
    {"loss_type": loss_type, "ratio": ratio, "beta": beta}
    for loss_type in ("grpo", "bnpo", "dapo", "dr_grpo")
    for ratio in ("token", "sequence")
    for beta in (0.0, 0.04)
]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("settings", GRPO_SETTINGS)
def test_grpo_at_the_start_of_the_update(policy, settings, cut):
    method = Grpo(GrpoConfig(**settings))
    reference = policy.other(0.4).detach() if method.needs_reference else None
    batch = policy.batch(method.normalisation, max_tokens=8, advantages=policy.noise(), ref_logprobs=reference)
    coefficient = assert_gradient(method, policy, batch, cut)
    expected = batch.advantages
    if reference is not None:
        expected = expected + settings["beta"] * (torch.exp(reference - batch.logprobs.detach()) - 1)
    torch.testing.assert_close(coefficient, expected)


@pytest.mark.parametrize("correction", ["none", "truncate", "mask"])
@pytest.mark.parametrize("settings", GRPO_SETTINGS)
def test_grpo_away_from_the_start(policy, settings, correction):
    method = Grpo(
        GrpoConfig(**settings, epsilon=0.1, epsilon_high=0.3, importance_correction=correction, importance_cap=1.1)
    )
    batch = policy.batch(
        method.normalisation,
        max_tokens=8,
        advantages=policy.noise(),
        old_logprobs=policy.other(0.3).detach(),
        ref_logprobs=policy.other(0.4).detach(),
        sampler_logprobs=policy.other(0.1).detach(),
    )
    assert_gradient(method, policy, batch, [2, 1, 3])


def test_grpo_with_the_unbiased_kl(policy):
    method = Grpo(GrpoConfig(beta=0.1, unbiased_kl=True))
    reference = policy.other(0.4).detach()
    batch = policy.batch("grpo", advantages=policy.noise(), ref_logprobs=reference)
    coefficient = assert_gradient(method, policy, batch, [2, 4])
    torch.testing.assert_close(coefficient, batch.advantages - 0.1 * (batch.logprobs.detach() - reference))
    away = policy.batch(
        "grpo", advantages=policy.noise(), ref_logprobs=reference, old_logprobs=policy.other(0.3).detach()
    )
    assert_gradient(method, policy, away, [2, 4])


def test_every_configured_method_is_made_and_says_what_it_asks_for():
    asked = {}
    for name in MethodName.__args__:
        method = make_method(PolicyConfig(method=name))
        asked[method.name] = (method.data, method.reward, method.needs_reference, method.needs_critic)
    assert list(asked) == list(METHODS)
    assert asked == {
        "sft": ("demonstrations", "ones", False, False),
        "rft": ("fixed_samples", "rule", False, False),
        "online_rft": ("on_policy", "rule", False, False),
        "dpo": ("pairs", "preference", True, False),
        "ppo": ("on_policy", "rewards", True, True),
        "grpo": ("on_policy", "rewards", True, False),
    }
    assert not make_method(PolicyConfig(grpo=GrpoConfig(beta=0.0))).needs_reference
    assert not make_method(PolicyConfig(method="ppo", ppo=PpoConfig(kl_coef=0.0))).needs_reference
