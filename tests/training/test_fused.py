import pytest
import torch
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from grpo_pipeline.training import fused
from grpo_pipeline.training.batching import Row, response_row
from grpo_pipeline.training.fused_llama import is_supported
from grpo_pipeline.training.layouts import collate_packed, read_hidden

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def gradients(function, *inputs):
    """The function's value, and the gradients of a fixed weighting of it by every float input."""
    inputs = [x.clone().requires_grad_() if torch.is_tensor(x) else x for x in inputs]
    value = function(*inputs)
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view_as(value)
    tensors = [x for x in inputs if torch.is_tensor(x)]
    return value.detach(), torch.autograd.grad((value * weights).sum(), tensors, allow_unused=True)


def random(*shape, dtype):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_each_kernel_equals_its_plain_form(dtype, tolerance):
    states, weight = random(7, 12, dtype=dtype), random(12, dtype=dtype)
    angles = random(7, 1, 3, dtype=dtype).repeat(1, 1, 2)
    heads = random(7, 2, 6, dtype=dtype)
    cases = [
        (fused.rms_norm, fused.plain_rms_norm, (states, weight, 1e-6)),
        (
            lambda x: fused.rotate(x, angles.cos(), fused.signed_sines(angles.sin())),
            lambda x: fused.plain_rotate(x, angles.cos(), angles.sin()),
            (heads,),
        ),
    ]
    for kernel, plain, inputs in cases:
        got, expected = gradients(kernel, *inputs), gradients(plain, *inputs)
        assert_close(got, expected, rtol=0, atol=tolerance)


def test_rms_norm_of_a_frozen_weight_and_of_zeros():
    x = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.ones(3, dtype=torch.float64)
    fused.rms_norm(x, weight, 1e-6).sum().backward()
    # At 0 the norm is x / sqrt(eps), so its slope is 1000.
    assert_close(x.grad, torch.full((2, 3), 1000.0, dtype=torch.float64))


def batch():
    prompt, other = [5, 6, 7, 8], [9, 10]
    rows = [response_row(prompt, [11, 12, 13]), response_row(prompt, [14]), response_row(other, [3, 4])]
    alone = torch.arange(20, 28).numpy()
    rows.append(Row(alone, 0, torch.tensor([2, 7]).numpy()))
    return collate_packed(rows, range(len(rows)), 0, CPU)


def plain_norms(model):
    """transformers' RMSNorm computes in float32 whatever the type; the plain form stands in for it."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = lambda x, module=module: fused.plain_rms_norm(x, module.weight, module.variance_epsilon)


@pytest.mark.parametrize("family", ["llama", "llama_biased", "qwen2"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-5)])
def test_layers_equal_transformers_own(family, dtype, tolerance):
    torch.manual_seed(0)
    if family == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**SIZES))
    else:
        bias = family == "llama_biased"
        model = LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=bias, mlp_bias=bias))
    model.to(dtype)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    assert is_supported(model.base_model)
    plain_norms(model)
    model.base_model.rotary_emb.to(dtype)
    results = []
    for is_fused in (True, False):
        model.zero_grad()
        hidden = read_hidden(model.base_model, batch(), fused=is_fused)
        (hidden * torch.linspace(-1, 1, hidden.numel(), dtype=dtype).view_as(hidden)).sum().backward()
        results.append([hidden.detach(), *(p.grad for p in model.base_model.parameters())])
    for got, expected in zip(*results, strict=True):
        assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_what_is_not_a_plain_llama_keeps_its_own_layers():
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    assert is_supported(model.base_model)
    assert not is_supported(model.to(torch.bfloat16).base_model)
    model.to(torch.float32)
    model.base_model.layers[1].mlp.up_proj.register_forward_hook(lambda *_: None)
    assert not is_supported(model.base_model)
    checkpointing = LlamaForCausalLM(LlamaConfig(**SIZES))
    checkpointing.gradient_checkpointing_enable()
    assert not is_supported(checkpointing.base_model)
