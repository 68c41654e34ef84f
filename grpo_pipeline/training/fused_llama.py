"""Hidden states of Llama-family backbones on a CPU, with few, large operations.

Same arithmetic as transformers' layers, less of what is not products: element-wise parts are fused
(`training.fused`), residuals are added by the products themselves, and the last layer runs its MLP only for the
tokens whose states are read (a PRM reads one token in ten). `training.fused_layers = false` takes transformers' own
layers, which is the path to read first.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from grpo_pipeline.training.fused import rms_norm, rotate, signed_sines
from grpo_pipeline.training.packed_attention import PackedLayout, attend_packed

_FAMILIES = frozenset({"LlamaModel", "Qwen2Model", "MistralModel"})
_FIXED_ROPES = frozenset({"default", "linear", "llama3", "yarn"})
_NORMS = ("input_layernorm", "post_attention_layernorm", "norm")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def is_supported(backbone: nn.Module) -> bool:
    """Whether a backbone is a Llama, Qwen2 or Mistral on a CPU, in float32 or float64, without adapters or hooks."""
    config: Any = backbone.config
    if type(backbone).__name__ not in _FAMILIES or getattr(backbone, "gradient_checkpointing", False):
        return False
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    weights = {(parameter.device.type, parameter.dtype) for parameter in backbone.parameters()}
    modules = dict(backbone.named_modules())
    return (
        rope in _FIXED_ROPES
        and config.hidden_act == "silu"
        and weights in ({("cpu", torch.float32)}, {("cpu", torch.float64)})
        and all(type(m) is nn.Linear for name, m in modules.items() if name.rsplit(".", 1)[-1] in _PROJECTIONS)
        and all(hasattr(m, "variance_epsilon") for name, m in modules.items() if name.rsplit(".", 1)[-1] in _NORMS)
        and not any(m._forward_hooks or m._forward_pre_hooks for m in modules.values())
    )


def read_hidden_fused(
    backbone: Any, input_ids: Tensor, position_ids: Tensor, layout: PackedLayout, read: Tensor
) -> Tensor:
    """(N, hidden) last hidden states of a packed sequence at the read positions.

    Args:
        backbone: A backbone that `is_supported`.
        input_ids: (1, L) token ids.
        position_ids: (1, L).
        layout: Where each sequence lies.
        read: (N,) indices into the L tokens.
    """
    embedded = backbone.embed_tokens(input_ids)
    cos, sin = backbone.rotary_emb(embedded, position_ids)
    cos, sin = cos[0][:, None], signed_sines(sin[0])[:, None]  # (L, 1, D)
    x = embedded[0]
    layers = backbone.layers[: backbone.config.num_hidden_layers]
    for index, layer in enumerate(layers):
        attended = _attend(layer, x, cos, sin, layout)
        if index == len(layers) - 1:
            attended, x = attended.index_select(0, read), x.index_select(0, read)
        x = _added(x, attended, layer.self_attn.o_proj)
        normed = rms_norm(x, layer.post_attention_layernorm.weight, layer.post_attention_layernorm.variance_epsilon)
        mlp = layer.mlp
        x = _added(x, functional.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed), mlp.down_proj)
    return rms_norm(x, backbone.norm.weight, backbone.norm.variance_epsilon)


def _attend(layer: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: PackedLayout) -> Tensor:
    """(L, heads x D) outputs of a layer's attention, before its output projection."""
    attention, norm = layer.self_attn, layer.input_layernorm
    normed = rms_norm(x, norm.weight, norm.variance_epsilon)
    query, key, value = (
        project(normed).view(len(x), -1, attention.head_dim)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    outputs = attend_packed(rotate(query, cos, sin), rotate(key, cos, sin), value, layout, attention.scaling)
    return outputs.flatten(1)


def _added(x: Tensor, inner: Tensor, projection: nn.Linear) -> Tensor:
    """X + projection(inner), in one product."""
    result = torch.addmm(x, inner, projection.weight.t())
    return result if projection.bias is None else result + projection.bias
