"""Shares of tokens by hand, and accumulation that does not see how the step was cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.config import DpoConfig, GrpoConfig, PpoConfig
from grpo_pipeline.methods.dpo import Dpo
from grpo_pipeline.methods.grpo import Grpo
from grpo_pipeline.methods.metrics import add_metrics, metric_means
from grpo_pipeline.methods.ppo import Ppo
from grpo_pipeline.methods.weights import mask_truncated, rollout_weights, token_weights, trained_lengths
from tests.methods.tiny_policy import TinyPolicy, micro_batches

LENGTHS = torch.tensor([2, 4, 1, 5])


@pytest.mark.parametrize(
    ("normalisation", "expected"),
    [
        ("grpo", [1 / 8, 1 / 16, 1 / 4, 1 / 20]),
        ("dapo", [1 / 12] * 4),
        ("bnpo", [1 / 12] * 4),
        ("dr_grpo", [1 / 40] * 4),
        ("pair_mean", [1 / 4, 1 / 8, 1 / 2, 1 / 10]),
        ("pair_sum", [1 / 2] * 4),
    ],
)
def test_shares_by_hand(normalisation, expected):
    shares = rollout_weights(LENGTHS, normalisation, max_tokens=10)
    torch.testing.assert_close(shares, torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)


def test_unequal_groups_weigh_the_same():
    # Problem 7 has one rollout left of two, problem 3 has three: (1/Q)(1/G_q)(1/|o_i|).
    shares = rollout_weights(LENGTHS, "grpo", groups=torch.tensor([3, 3, 7, 3]))
    expected = torch.tensor([1 / 12, 1 / 24, 1 / 2, 1 / 30], dtype=torch.float64)
    torch.testing.assert_close(shares, expected, rtol=1e-15, atol=0)
    shares = rollout_weights(LENGTHS, "dr_grpo", groups=torch.tensor([3, 3, 7, 3]), max_tokens=5)
    expected = torch.tensor([1 / 30, 1 / 30, 1 / 10, 1 / 30], dtype=torch.float64)
    torch.testing.assert_close(shares, expected, rtol=1e-15, atol=0)


def test_masked_tokens_have_no_share_and_do_not_count():
    row = torch.tensor([0, 0, 0, 1, 1])
    mask = torch.tensor([True, True, False, True, True])
    lengths = trained_lengths(row, mask, 2)
    assert lengths.tolist() == [2, 2]
    assert token_weights(lengths, row, mask, "grpo").tolist() == [0.25, 0.25, 0.0, 0.25, 0.25]


def test_a_cut_off_rollout_keeps_its_place_in_the_mean_over_rollouts_but_not_among_tokens():
    row = torch.tensor([0, 0, 1, 1, 1, 1])
    mask = mask_truncated(torch.ones(6, dtype=torch.bool), row, torch.tensor([False, True]))
    lengths = trained_lengths(row, mask, 2)
    assert lengths.tolist() == [2, 0]
    assert token_weights(lengths, row, mask, "grpo").tolist() == [0.25, 0.25, 0, 0, 0, 0]
    assert token_weights(lengths, row, mask, "dapo").tolist() == [0.5, 0.5, 0, 0, 0, 0]


def test_a_step_with_no_trained_token_has_weights_of_zero():
    row, mask = torch.tensor([0, 1]), torch.zeros(2, dtype=torch.bool)
    for normalisation in ("grpo", "dapo", "dr_grpo", "pair_mean", "pair_sum"):
        weights = token_weights(trained_lengths(row, mask, 2), row, mask, normalisation, max_tokens=4)
        assert weights.tolist() == [0, 0]


def test_impossible_calls_are_refused():
    with pytest.raises(ValueError, match="needs max_tokens"):
        rollout_weights(LENGTHS, "dr_grpo")
    with pytest.raises(ValueError, match="has 5 trained tokens, max_tokens is 4"):
        rollout_weights(LENGTHS, "dr_grpo", max_tokens=4)
    with pytest.raises(ValueError, match="got 3 rows"):
        rollout_weights(LENGTHS[:3], "pair_sum")
    with pytest.raises(ValueError, match="groups has shape"):
        rollout_weights(LENGTHS, "grpo", groups=torch.tensor([0, 0]))


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.data())
def test_shares_add_up_to_one(lengths, data):
    groups = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths))))
    tensor = torch.tensor(lengths)
    for normalisation in ("grpo", "dapo"):
        shares = rollout_weights(tensor, normalisation, groups=groups)
        assert (shares * tensor).sum().item() == pytest.approx(1, abs=1e-12)
    # Under grpo every group has the same total, whatever its size.
    totals = torch.zeros(4, dtype=torch.float64).index_add(
        0, groups, rollout_weights(tensor, "grpo", groups=groups) * tensor
    )
    present = totals[totals > 0]
    torch.testing.assert_close(present, torch.full_like(present, 1 / len(present)))


def step_of(method, policy, mask):
    return policy.batch(
        method.normalisation,
        mask=mask,
        max_tokens=9,
        advantages=policy.noise(),
        old_logprobs=policy.other(0.2).detach(),
        ref_logprobs=policy.other(0.3).detach(),
        values=policy.noise(),
        old_values=policy.noise(),
        returns=policy.noise(),
        entropy=policy.noise().abs(),
    )


@pytest.mark.parametrize(
    "method",
    [
        *(Grpo(GrpoConfig(loss_type=loss_type)) for loss_type in ("grpo", "bnpo", "dapo", "dr_grpo")),
        Grpo(GrpoConfig(ratio="sequence")),
        Ppo(PpoConfig()),
        Dpo(DpoConfig()),
        Dpo(DpoConfig(length_normalised=True)),
    ],
    ids=["grpo", "bnpo", "dapo", "dr_grpo", "gspo", "ppo", "dpo", "dpo_normalised"],
)
def test_unequal_micro_batches_add_up_to_one_big_batch(method):
    policy = TinyPolicy([1, 9, 2, 2, 7, 3, 1, 4], seed=3)
    mask = torch.rand(len(policy.row), generator=policy.generator) > 0.1
    batch = step_of(method, policy, mask)
    whole = method.loss(batch)
    (whole_gradient,) = torch.autograd.grad(whole.loss, policy.matrix, retain_graph=True)
    for cut in ([2, 6], [6, 2], [2, 2, 2, 2], [2, 4, 2]):
        parts = [method.loss(part) for part in micro_batches(batch, cut)]
        loss = sum(part.loss for part in parts)
        (gradient,) = torch.autograd.grad(loss, policy.matrix, retain_graph=True)
        torch.testing.assert_close(loss, whole.loss, rtol=0, atol=1e-12)
        torch.testing.assert_close(gradient, whole_gradient, rtol=0, atol=1e-12)
        metrics = metric_means(add_metrics(part.metrics for part in parts))
        assert metrics == pytest.approx(metric_means(whole.metrics), abs=1e-12)
        assert len(metrics) >= 4


def test_a_mean_of_micro_batch_means_would_differ():
    # The trap that the weights avoid: with unequal micro-batches, averaging per micro-batch changes the loss.
    policy = TinyPolicy([1, 9, 2, 2], seed=1)
    method = Grpo(GrpoConfig(loss_type="dapo", beta=0.0))
    batch = policy.batch("dapo", advantages=policy.noise())
    whole = method.loss(batch).loss.item()
    naive = []
    for part in micro_batches(batch, [1, 3]):
        total = method.loss(part).loss.item() / part.weights.sum().item()
        naive.append(total)
    assert abs(sum(naive) / 2 - whole) > 1e-2


def test_metrics_that_nothing_counted_for_are_left_out():
    assert metric_means({}) == {}
    assert metric_means({"a": torch.tensor([0.0, 0.0]), "b": torch.tensor([3.0, 2.0])}) == {"b": 1.5}
