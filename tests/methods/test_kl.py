"""The KL estimators against their formulas and against the exact KL of two categorical policies."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.methods.kl import k1, k3

LOGPROB = st.floats(-20, 0)


def both(p, q):
    return torch.tensor([p], dtype=torch.float64), torch.tensor([q], dtype=torch.float64)


def test_by_hand():
    # pi = 1/2, pi_ref = 1/8: d = log 4.
    pair = both(math.log(1 / 2), math.log(1 / 8))
    assert k1(*pair).item() == pytest.approx(math.log(4), abs=1e-15)
    assert k3(*pair).item() == pytest.approx(1 / 4 + math.log(4) - 1, abs=1e-15)


@settings(deadline=None)
@given(LOGPROB, LOGPROB)
def test_k3_is_the_papers_formula_and_never_negative(p, q):
    value = k3(*both(p, q)).item()
    assert value >= 0
    ratio = math.exp(q - p)  # pi_ref / pi_theta
    assert value == pytest.approx(ratio - (q - p) - 1, rel=1e-9, abs=1e-12)


def test_k1_and_k3_are_unbiased_under_the_current_policy():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 6, dtype=torch.float64, generator=generator)
    policy, reference = torch.log_softmax(logits, -1)
    exact = (policy.exp() * (policy - reference)).sum().item()
    expectation = {f.__name__: (policy.exp() * f(policy, reference)).sum().item() for f in (k1, k3)}
    assert expectation["k1"] == pytest.approx(exact, abs=1e-12)
    assert expectation["k3"] == pytest.approx(exact, abs=1e-12)
    # Under another policy than the current one k3 is not unbiased (METHOD 4).
    assert abs((reference.exp() * k3(policy, reference)).sum().item() - exact) > 0.01


def test_k3_keeps_its_digits_where_the_policies_nearly_agree():
    # d = 1e-4 in float32: exp(x) - x - 1 would be off by as much as the value, 5e-9.
    value = k3(torch.tensor([-1.0]), torch.tensor([-1.0 + 2**-13])).item()
    assert value == pytest.approx(2**-27, rel=1e-2)


def test_gradient_of_k3():
    p = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([-2.5], dtype=torch.float64)
    k3(p, q).backward()
    assert p.grad.item() == pytest.approx(1 - math.exp(-1.5), abs=1e-12)
