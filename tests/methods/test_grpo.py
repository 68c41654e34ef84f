"""GRPO's loss, clip, KL and corrections on values worked out by hand."""

import math

import pytest
import torch

from grpo_pipeline.config import GrpoConfig
from grpo_pipeline.methods.base import TokenBatch
from grpo_pipeline.methods.grpo import Grpo
from grpo_pipeline.methods.metrics import metric_means
from tests.methods.tiny_policy import TinyPolicy, assert_gradient


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def batch(ratios, advantages, *, weights=None, row=None, **tensors):
    """Tokens whose pi_theta / pi_old are `ratios`, pi_old being 1/2."""
    n = len(ratios)
    return TokenBatch(
        logprobs=torch.log(tensor(*ratios) / 2).requires_grad_(),
        weights=torch.full((n,), 1 / n, dtype=torch.float64) if weights is None else tensor(*weights),
        row=torch.zeros(n, dtype=torch.int64) if row is None else torch.tensor(row),
        advantages=tensor(*advantages),
        old_logprobs=torch.full((n,), math.log(0.5), dtype=torch.float64),
        **tensors,
    )


def test_clipping_by_hand():
    # eps 0.2: 1.5 with A > 0 is cut to 1.2; 0.5 with A < 0 to 0.8; 1.5 with A < 0 and 0.5 with A > 0 are not cut.
    step = batch([1.5, 0.5, 1.5, 0.5, 1.1], [2, -2, -1, 1, 3])
    method = Grpo(GrpoConfig(beta=0.0, epsilon=0.2))
    result = method.loss(step)
    assert result.loss.item() == pytest.approx(-(2.4 - 1.6 - 1.5 + 0.5 + 3.3) / 5, abs=1e-12)
    (gradient,) = torch.autograd.grad(result.loss, step.logprobs)
    assert (-5 * gradient).tolist() == pytest.approx([0, 0, -1.5, 0.5, 3.3], abs=1e-12)
    assert metric_means(result.metrics) == pytest.approx(
        {"clip_ratio/low_mean": 0.2, "clip_ratio/high_mean": 0.2, "clip_ratio/region_mean": 0.4}
    )


def test_clip_higher_moves_the_upper_bound_only():
    step = batch([1.25, 1.35, 0.75], [1, 1, -1])
    result = Grpo(GrpoConfig(beta=0.0, epsilon=0.2, epsilon_high=0.28)).loss(step)
    assert result.loss.item() == pytest.approx(-(1.25 + 1.28 - 0.8) / 3, abs=1e-12)


def test_kl_by_hand():
    # pi = 1/4, pi_ref = 1/2: k3 = 2 - log 2 - 1; pi = pi_ref: 0.
    step = batch([0.5, 1.0], [0, 0], ref_logprobs=torch.log(tensor(0.5, 0.5)))
    result = Grpo(GrpoConfig(beta=0.1)).loss(step)
    assert result.loss.item() == pytest.approx(0.1 * (1 - math.log(2)) / 2, abs=1e-12)
    assert metric_means(result.metrics)["kl"] == pytest.approx((1 - math.log(2)) / 2, abs=1e-12)


def test_zero_std_groups_still_get_the_gradient_of_the_kl():
    policy = TinyPolicy([3, 4])
    reference = policy.other(0.5).detach()
    step = policy.batch("grpo", ref_logprobs=reference)
    assert not step.advantages.any()
    coefficient = assert_gradient(Grpo(GrpoConfig(beta=0.04)), policy, step)
    torch.testing.assert_close(coefficient, 0.04 * (torch.exp(reference - step.logprobs.detach()) - 1))


def test_without_beta_the_reference_is_not_read():
    step = batch([1.0], [1], ref_logprobs=tensor(math.nan))
    assert Grpo(GrpoConfig(beta=0.0)).loss(step).loss.item() == -1
    with pytest.raises(ValueError, match=r"grpo needs TokenBatch\.ref_logprobs"):
        Grpo(GrpoConfig(beta=0.04)).loss(batch([1.0], [1]))


def test_sequence_ratio_is_the_geometric_mean_over_trained_tokens():
    # Rollout 0: ratios 2 and 1/2 (geometric mean 1), and an untrained token of ratio 100; rollout 1: 1.1.
    step = batch([2, 0.5, 100, 1.1], [3, 3, 3, 1], weights=[0.25, 0.25, 0, 0.5], row=[0, 0, 0, 1])
    method = Grpo(GrpoConfig(beta=0.0, ratio="sequence"))
    loss = method.loss(step).loss
    assert loss.item() == pytest.approx(-(0.5 * 3 + 0.5 * 1.1), abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, step.logprobs)
    assert (-gradient).tolist() == pytest.approx([0.75, 0.75, 0, 0.55], abs=1e-12)


def test_the_sequence_form_has_gspos_own_gradient_for_constant_advantages():
    # GSPO as printed (arXiv 2507.18071, eq. 5): mean_i min(s_i A_i, clip(s_i) A_i), s_i with its own gradient.
    policy = TinyPolicy([3, 1, 5, 2], seed=5)
    old = policy.other(0.2).detach()
    advantage = tensor(1.0, -0.5, 2.0, -1.5)
    step = policy.batch("grpo", advantages=advantage[policy.row], old_logprobs=old)
    method = Grpo(GrpoConfig(beta=0.0, ratio="sequence", epsilon=0.05))
    log_ratio = policy.logprobs() - old
    s = torch.stack([log_ratio[policy.row == i].mean() for i in range(4)]).exp()
    printed = -torch.minimum(s * advantage, s.clamp(0.95, 1.05) * advantage).mean()
    ours = method.loss(step).loss
    torch.testing.assert_close(ours, printed, rtol=0, atol=1e-12)
    expected = torch.autograd.grad(printed, policy.matrix, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(ours, policy.matrix)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "weights"), [("truncate", [1.5, 0.5, 2.0]), ("mask", [1.5, 0.5, 0.0])])
def test_importance_correction_weighs_the_surrogate_and_not_the_kl(kind, weights):
    # pi_old / pi_sampler = 1.5, 0.5, 4 with the cap at 2; pi_old = 1/2, pi_ref = 1.
    step = batch(
        [1, 1, 1],
        [1, -2, 3],
        sampler_logprobs=torch.log(tensor(0.5 / 1.5, 1.0, 0.125)),
        ref_logprobs=tensor(0, 0, 0),
    )
    method = Grpo(GrpoConfig(beta=0.1, importance_correction=kind, importance_cap=2.0))
    result = method.loss(step)
    surrogate = (weights[0] - 2 * weights[1] + 3 * weights[2]) / 3
    assert result.loss.item() == pytest.approx(-surrogate + 0.1 * (1 - math.log(2)), abs=1e-12)
    metrics = metric_means(result.metrics)
    assert metrics["sampling/importance_sampling_ratio/mean"] == pytest.approx(sum(weights) / 3)
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(
        (math.log(1.5) + math.log(2) + math.log(4)) / 3
    )


def test_sampler_distance_is_measured_without_a_correction_too():
    step = batch([1, 1], [1, 1], sampler_logprobs=torch.log(tensor(0.25, 0.5)))
    result = Grpo(GrpoConfig(beta=0.0)).loss(step)
    assert result.loss.item() == -1
    metrics = metric_means(result.metrics)
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(math.log(2) / 2)
    assert "sampling/importance_sampling_ratio/mean" not in metrics


def test_untrained_tokens_change_nothing():
    full = batch([1.5, 0.7, 1.0], [1, -1, 2], weights=[0.5, 0, 0.5], ref_logprobs=tensor(-1, -9, -2))
    part = batch([1.5, 1.0], [1, 2], weights=[0.5, 0.5], ref_logprobs=tensor(-1, -2))
    method = Grpo(GrpoConfig())
    assert method.loss(full).loss.item() == pytest.approx(method.loss(part).loss.item(), abs=1e-15)
    assert metric_means(method.loss(full).metrics) == pytest.approx(metric_means(method.loss(part).metrics))
