"""A decode step of small Llama-family models with few, large operations.

With a model of a few million parameters, most of a step through transformers' layers is the overhead of
some thirty small operations a layer. Here it is fourteen: query, key and value in one product, gate and up
in one, norm weights and the attention scale folded into the weights that follow them, the rotation as one
complex product (which needs the head dimensions interleaved, so keys are kept in that order), residuals
added by the products themselves. `steps.choose_step` takes it only if it gives the model's own logits.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from grpo_pipeline.engines.cache import SlotCache, StepCache

LARGEST = 32_000_000
"""Parameters above which folding a copy of the weights at every call costs more than it saves."""
_FAMILIES = frozenset({"LlamaForCausalLM", "Qwen2ForCausalLM", "MistralForCausalLM"})
_FIXED_ROPES = frozenset({"default", "linear", "llama3", "yarn"})
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def is_supported(model: Any) -> bool:
    """Whether the model is a small float32 Llama, Qwen2 or Mistral with plain linear layers (no adapters)."""
    if type(model).__name__ not in _FAMILIES or model.dtype != torch.float32:
        return False
    rope = (getattr(model.config, "rope_parameters", None) or {}).get("rope_type")
    plain = all(
        type(module) is nn.Linear
        for name, module in model.named_modules()
        if name.rsplit(".", 1)[-1] in (*_PROJECTIONS, "lm_head")
    )
    return (
        plain
        and rope in _FIXED_ROPES
        and model.config.hidden_act == "silu"
        and sum(parameter.numel() for parameter in model.parameters()) <= LARGEST
    )


@dataclass(frozen=True)
class _Layer:
    """Folded weights of one layer; matrices as (out, in), but `out` and `down` as (in, out) for addmm."""

    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None

    @classmethod
    def fold(cls, layer: Any, order: Tensor) -> Self:
        attention, mlp = layer.self_attn, layer.mlp
        queries, keys = (_interleave(p, attention.head_dim, order) for p in (attention.q_proj, attention.k_proj))
        scale = attention.head_dim**-0.5
        values = (attention.v_proj.weight, attention.v_proj.bias)
        norm_in, norm_mlp = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        return cls(
            qkv=torch.cat([queries[0] * scale, keys[0], values[0]]) * norm_in,
            qkv_bias=None if values[1] is None else torch.cat([queries[1] * scale, keys[1], values[1]]),
            out=attention.o_proj.weight.T.contiguous(),
            out_bias=attention.o_proj.bias,
            gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * norm_mlp,
            gate_up_bias=None if mlp.up_proj.bias is None else torch.cat([mlp.gate_proj.bias, mlp.up_proj.bias]),
            down=mlp.down_proj.weight.T.contiguous(),
            down_bias=mlp.down_proj.bias,
        )


class LlamaStep:
    """See `steps.DecodeStep`.

    Args:
        model: A model that `is_supported`.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        config = model.config
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = model.model.layers[0].self_attn.head_dim
        self._eps = config.rms_norm_eps
        half = torch.arange(self._head_dim, device=model.device).view(2, -1)
        self._order = half.T.reshape(-1)  # 0, D/2, 1, D/2 + 1, ...: the two parts of a rotation side by side
        self._rotations = torch.empty(0)
        self.refresh()

    def refresh(self) -> None:
        """Fold the weights anew."""
        body = self._model.model
        with torch.no_grad():
            self._layers = [_Layer.fold(layer, self._order) for layer in body.layers]
            self._embedding = body.embed_tokens.weight
            self._head = self._model.lm_head.weight * body.norm.weight
            self._head_bias = self._model.lm_head.bias

    def arrange(self, layers: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """Keys with their head dimensions interleaved, values as they are."""
        return [(keys[..., self._order], values) for keys, values in layers]

    def __call__(self, tokens: Tensor, positions: Tensor, slots: SlotCache, length: int) -> Tensor:
        """See `steps.DecodeStep`."""
        n, head_dim, kv_heads = len(tokens), self._head_dim, self._kv_heads
        rotation = self._rotation(length)[positions][:, None]  # (n, 1, D / 2)
        mask = torch.zeros((n, 1, length), device=tokens.device)
        mask.masked_fill_((torch.arange(length, device=tokens.device) > positions[:, None])[:, None], float("-inf"))
        if kv_heads > 1:
            mask = mask.repeat_interleave(kv_heads, dim=0)
        cache = StepCache(slots, positions, length)
        x = self._embedding[tokens]  # (n, hidden); residuals are added in place
        rotated = (self._heads + kv_heads) * head_dim
        queried = self._heads * head_dim
        for index, layer in enumerate(self._layers):
            qkv = functional.linear(self._norm(x), layer.qkv, layer.qkv_bias)
            pairs = qkv[:, :rotated].view(n, -1, head_dim // 2, 2)
            torch.view_as_complex(pairs).mul_(rotation)
            keys, values = cache.update(
                index,
                qkv[:, queried:rotated].view(n, kv_heads, head_dim),
                qkv[:, rotated:].view(n, kv_heads, head_dim),
            )
            queries = qkv[:, :queried].reshape(n * kv_heads, -1, head_dim)
            scores = torch.baddbmm(mask, queries, keys.flatten(0, 1).transpose(1, 2))
            attended = torch.bmm(torch.softmax(scores, dim=-1), values.flatten(0, 1))
            _add_product(x, attended.view(n, queried), layer.out, layer.out_bias)
            gate, up = functional.linear(self._norm(x), layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            _add_product(x, functional.silu(gate).mul_(up), layer.down, layer.down_bias)
        return functional.linear(self._norm(x), self._head, self._head_bias)

    def _norm(self, x: Tensor) -> Tensor:
        # On a CPU functional.rms_norm is ten operations; here two of them touch all of x.
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * length.square_().mul_(1 / x.shape[-1]).add_(self._eps).rsqrt_()

    def _rotation(self, length: int) -> Tensor:
        """cos + i sin of every position below `length`, (>= length, D / 2) complex64."""
        if len(self._rotations) < length:
            positions = torch.arange(2 * length, device=self._order.device)[None]
            cos, sin = self._model.model.rotary_emb(self._embedding, positions)
            half = self._head_dim // 2
            self._rotations = torch.complex(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())
        return self._rotations


def _add_product(x: Tensor, left: Tensor, right: Tensor, bias: Tensor | None) -> None:
    x.addmm_(left, right)
    if bias is not None:
        x.add_(bias)


def _interleave(projection: Any, head_dim: int, order: Tensor) -> tuple[Tensor, Any]:
    """Weight and bias of a query or key projection with each head's rows in the given order."""
    weight, bias = projection.weight, projection.bias
    permuted = weight.view(-1, head_dim, weight.shape[-1])[:, order].reshape(weight.shape)
    return permuted, None if bias is None else bias.view(-1, head_dim)[:, order].reshape(-1)
