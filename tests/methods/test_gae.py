"""GAE against its definition as a double sum over each response."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.methods.gae import gae


def by_definition(rewards, values, row, gamma, lam):
    """A_t = sum_l (gamma lam)^l delta_{t+l}, O(T^2), one response at a time."""
    result = []
    for i in sorted(set(row)):
        r = [x for x, j in zip(rewards, row, strict=True) if j == i]
        v = [x for x, j in zip(values, row, strict=True) if j == i]
        delta = [r[t] + (gamma * v[t + 1] if t + 1 < len(v) else 0) - v[t] for t in range(len(r))]
        result += [sum((gamma * lam) ** (u - t) * delta[u] for u in range(t, len(r))) for t in range(len(r))]
    return result


NUMBER = st.floats(-10, 10)


@settings(deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.floats(0, 1), st.floats(0, 1), st.data())
def test_gae_is_the_double_sum(lengths, gamma, lam, data):
    n = sum(lengths)
    rewards = data.draw(st.lists(NUMBER, min_size=n, max_size=n))
    values = data.draw(st.lists(NUMBER, min_size=n, max_size=n))
    row = [i for i, length in enumerate(lengths) for _ in range(length)]
    advantages, returns = gae(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(row),
        gamma=gamma,
        lam=lam,
    )
    expected = by_definition(rewards, values, row, gamma, lam)
    assert advantages.tolist() == pytest.approx(expected, abs=1e-9)
    assert returns.tolist() == pytest.approx([a + v for a, v in zip(expected, values, strict=True)], abs=1e-9)


def test_by_hand_and_responses_do_not_leak_into_each_other():
    rewards = torch.tensor([0.0, 1.0, 5.0])
    values = torch.tensor([0.5, 0.25, 2.0])
    # gamma 0.5, lam 0.5. Row 4: delta_1 = 1 - 0.25, delta_0 = 0.5 * 0.25 - 0.5; A_0 = delta_0 + 0.25 delta_1.
    advantages, returns = gae(rewards, values, torch.tensor([4, 4, 9]), gamma=0.5, lam=0.5)
    assert advantages.tolist() == pytest.approx([-0.375 + 0.25 * 0.75, 0.75, 3.0])
    assert returns.tolist() == pytest.approx([0.3125, 1.0, 5.0])


def test_lambda_1_is_monte_carlo_and_no_gradient_flows():
    values = torch.tensor([0.3, -0.2, 0.9], requires_grad=True)
    _, returns = gae(torch.tensor([1.0, 2.0, 4.0]), values, torch.tensor([0, 0, 0]), gamma=1.0, lam=1.0)
    assert returns.tolist() == pytest.approx([7, 6, 4])
    assert not returns.requires_grad


def test_no_tokens():
    advantages, returns = gae(torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.int64), gamma=1.0, lam=0.9)
    assert advantages.numel() == returns.numel() == 0
