import pytest
import torch
from torch import nn

from grpo_pipeline.training import logprobs
from grpo_pipeline.training.logprobs import plain_logprobs, token_logprobs


def _case(dtype, bias, seed=0):
    torch.manual_seed(seed)
    head = nn.Linear(8, 31, bias=bias).to(dtype)
    hidden = torch.randn(23, 8, dtype=dtype, requires_grad=True)
    return hidden, head, torch.randint(31, (23,))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_chunks_equal_the_plain_form(monkeypatch, bias, temperature, dtype, tolerance):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 31 * 5)  # five tokens a chunk, the last one short
    hidden, head, targets = _case(dtype, bias)
    results = []
    for function in (token_logprobs, plain_logprobs):
        hidden.grad = None
        head.zero_grad()
        values, entropy = function(hidden, head, targets, temperature)
        (values * torch.linspace(-2, 1, 23, dtype=dtype)).sum().backward()
        results.append([values.detach(), entropy, hidden.grad, head.weight.grad, *([head.bias.grad] if bias else [])])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


def test_temperature_by_hand():
    # logits (0, ln 4) at T = 0.5 are (0, ln 16): p = 1/17 and 16/17.
    head = nn.Linear(1, 2, bias=False).double()
    head.weight.data = torch.tensor([[0.0], [4.0]], dtype=torch.float64).log().nan_to_num(neginf=0.0)
    values, entropy = token_logprobs(torch.ones(2, 1, dtype=torch.float64), head, torch.tensor([0, 1]), 0.5)
    p = torch.tensor([1 / 17, 16 / 17], dtype=torch.float64)
    torch.testing.assert_close(values, p.log())
    torch.testing.assert_close(entropy, (-(p * p.log()).sum()).expand(2))


def test_frozen_head_gets_no_gradient():
    hidden, head, targets = _case(torch.float64, bias=True)
    head.requires_grad_(False)
    token_logprobs(hidden, head, targets, 1.0)[0].sum().backward()
    assert head.weight.grad is None
    assert hidden.grad is not None


def test_greedy_temperature_is_refused():
    hidden, head, targets = _case(torch.float32, bias=False)
    with pytest.raises(ValueError, match="temperature above 0, got 0"):
        token_logprobs(hidden, head, targets, 0.0)


def test_autocast_keeps_float32_results_and_master_gradients():
    hidden, head, targets = _case(torch.float32, bias=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values, _ = token_logprobs(hidden, head, targets, 1.0)
    values.sum().backward()
    assert values.dtype == torch.float32
    assert head.weight.grad.dtype == torch.float32
    expected, _ = plain_logprobs(hidden.detach(), head, targets, 1.0)
    torch.testing.assert_close(values.detach(), expected.detach(), rtol=0, atol=0.05)
