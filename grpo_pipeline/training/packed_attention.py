"""Attention over packed sequences whose responses share one copy of their prompt.

Registered with transformers under `PACKED_ATTENTION`; everything outside attention runs on the packed tokens
as they are. Inside, tokens are gathered into rectangles: prompts attend causally to themselves, responses to
their prompt's keys and causally to their own. Block-diagonal dense masks over the whole packed sequence would
cost its length squared; rectangles cost what the sequences themselves cost.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

PACKED_ATTENTION = "grpo_pipeline_packed"

MAX_WASTE = 1.3
"""A rectangle takes longer responses while its padded size stays below this times its real size."""


@dataclass(frozen=True)
class Tails:
    """A rectangle of responses of similar length.

    Attributes:
        shape: (B, S), responses and tokens of the longest.
        prompt: (B,) index into the prompt rectangle; None where the sequences have no prompt.
        mask: (B, 1, S, P + S) bool, True where a query may look; None where plain causality says it all.
    """

    shape: tuple[int, int]
    prompt: Tensor | None
    mask: Tensor | None


@dataclass(frozen=True)
class PackedLayout:
    """Where each packed token lies in the rectangles; made once, used by every layer.

    The rectangles lie one after the other in M slots: the prompts' first, then those of the tails.

    Attributes:
        gather: (M,) packed token of each slot; a padded slot repeats its sequence's last token.
        slot: (L,) the one slot of each packed token that is not padding.
        prompts: (G, P) shape of the prompt rectangle; (0, 0) if no sequence has a prompt.
        tails: The rectangles of responses.
    """

    gather: Tensor
    slot: Tensor
    prompts: tuple[int, int]
    tails: tuple[Tails, ...]


def build_layout(
    prompts: Sequence[tuple[int, int]],
    tails: Sequence[tuple[int, int, int]],
    length: int,
    device: torch.device,
) -> PackedLayout:
    """Index tensors for a packed sequence.

    Args:
        prompts: (start, length) of each prompt.
        tails: (start, length, prompt index) of each response; -1 for a sequence without prompt.
        length: L, tokens in the packed sequence.
        device: Where the index tensors go.
    """
    gather: list[npt.NDArray[np.int64]] = []
    slot = np.empty(length, dtype=np.int64)
    base = 0

    def add(spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
        nonlocal base
        starts, sizes = (np.array(x, dtype=np.int64)[:, None] for x in zip(*spans, strict=True))
        offsets = np.arange(int(sizes.max()))[None, :]
        tokens = (starts + np.minimum(offsets, sizes - 1)).reshape(-1)
        real = np.flatnonzero(offsets < sizes)
        slot[tokens[real]] = base + real
        gather.append(tokens)
        base += len(tokens)
        return len(spans), offsets.shape[1]

    prompt_shape = add(prompts) if prompts else (0, 0)
    blocks = []
    for members in _by_length(tails):
        shape = add([tails[i][:2] for i in members])
        prompt_of = np.array([tails[i][2] for i in members])
        if prompt_of[0] < 0:
            blocks.append(Tails(shape, None, None))
            continue
        sizes = np.array([prompts[p][1] for p in prompt_of])
        mask = _tail_mask(sizes, prompt_shape[1], shape[1])
        blocks.append(Tails(shape, torch.from_numpy(prompt_of).to(device), mask.to(device)))
    return PackedLayout(
        torch.from_numpy(np.concatenate(gather)).to(device),
        torch.from_numpy(slot).to(device),
        prompt_shape,
        tuple(blocks),
    )


def _by_length(tails: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """Indices of responses of similar length; those with a prompt apart from those without, empty ones nowhere."""
    result: list[list[int]] = []
    for with_prompt in (True, False):
        members = [i for i, (_, size, prompt) in enumerate(tails) if size and (prompt >= 0) == with_prompt]
        members.sort(key=lambda i: (tails[i][1], i))
        current: list[int] = []
        real = 0
        for i in members:
            size = tails[i][1]
            if current and (len(current) + 1) * size > MAX_WASTE * (real + size):
                result.append(current)
                current, real = [], 0
            current.append(i)
            real += size
        if current:
            result.append(current)
    return result


def _tail_mask(prompt_sizes: npt.NDArray[np.int64], longest_prompt: int, longest_tail: int) -> Tensor:
    rows = len(prompt_sizes)
    seen = torch.from_numpy(np.arange(longest_prompt)[None, :] < prompt_sizes[:, None])  # (B, P)
    causal = torch.ones(longest_tail, longest_tail, dtype=torch.bool).tril()
    parts = [
        seen[:, None, :].expand(rows, longest_tail, longest_prompt),
        causal.expand(rows, longest_tail, longest_tail),
    ]
    return torch.cat(parts, dim=-1).unsqueeze(1)


class _Pad(torch.autograd.Function):
    """(L, ...) packed tokens -> (M, ...) slots; the gradient is a gather, where index_select's is a scatter.

    Padded slots pass no gradient on: padded keys are masked or lie after every real query, and the outputs of
    padded queries are dropped.
    """

    @staticmethod
    def forward(ctx: Any, packed: Tensor, layout: PackedLayout) -> Tensor:
        ctx.layout = layout
        return packed.index_select(0, layout.gather)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].index_select(0, ctx.layout.slot), None


class _Unpad(torch.autograd.Function):
    """(M, ...) slots -> (L, ...) packed tokens."""

    @staticmethod
    def forward(ctx: Any, slots: Tensor, layout: PackedLayout) -> Tensor:
        ctx.layout = layout
        return slots.index_select(0, layout.slot)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        result = grads[0].new_zeros((len(ctx.layout.gather), *grads[0].shape[1:]))
        result[ctx.layout.slot] = grads[0]  # each slot at most once, so nothing accumulates
        return result, None


def _pad(packed: Tensor, layout: PackedLayout) -> Tensor:
    result: Tensor = _Pad.apply(packed, layout)  # type: ignore[no-untyped-call]
    return result


def _unpad(slots: Tensor, layout: PackedLayout) -> Tensor:
    result: Tensor = _Unpad.apply(slots, layout)  # type: ignore[no-untyped-call]
    return result


def packed_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed_layout: PackedLayout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer over a packed sequence, in transformers' signature.

    Args:
        module: The attention layer.
        query: (1, H, L, D).
        key: (1, Hkv, L, D).
        value: (1, Hkv, L, D).
        attention_mask: None; the layout says who sees whom.
        scaling: Factor on the scores; None is D**-0.5.
        dropout: 0; the trainer turns dropout off.
        packed_layout: Where each sequence lies.
        **kwargs: What transformers passes besides.

    Returns:
        (1, L, H, D) outputs, and None for the weights.
    """
    if packed_layout is None or attention_mask is not None or dropout:
        raise ValueError("packed attention takes a packed_layout, no attention_mask and no dropout")
    by_token = [x[0].transpose(0, 1) for x in (query, key, value)]
    output = attend_packed(by_token[0], by_token[1], by_token[2], packed_layout, scaling)
    return output.unsqueeze(0), None


def attend_packed(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, scaling: float | None) -> Tensor:
    """Attention of one layer over packed tokens.

    Args:
        query: (L, H, D).
        key: (L, Hkv, D).
        value: (L, Hkv, D).
        layout: Where each sequence lies.
        scaling: Factor on the scores; None is D**-0.5.

    Returns:
        (L, H, D) outputs.
    """
    shapes = [layout.prompts, *(tails.shape for tails in layout.tails)]
    sizes = [rows * longest for rows, longest in shapes]
    queries, keys, values = (
        [
            part.view(*shape, *part.shape[1:])
            for part, shape in zip(torch.split(_pad(x, layout), sizes), shapes, strict=True)
        ]
        for x in (query, key, value)
    )  # each a list of (B, S, heads, D)
    outputs = []
    if sizes[0]:
        outputs.append(_attend(queries[0], keys[0], values[0], None, scaling))
    for i, tails in enumerate(layout.tails, start=1):
        k, v = keys[i], values[i]
        if tails.prompt is not None:
            # Whole prompts are repeated, so that the backward pass adds a few large slices, not many small ones.
            k = torch.cat([keys[0].index_select(0, tails.prompt), k], dim=1)
            v = torch.cat([values[0].index_select(0, tails.prompt), v], dim=1)
        outputs.append(_attend(queries[i], k, v, tails.mask, scaling))
    return _unpad(torch.cat(outputs), layout)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """(B, Q, H, D) queries over (B, K, Hkv, D) keys -> (B * Q, H, D)."""
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.transpose(1, 2).flatten(0, 1)


AttentionInterface.register(PACKED_ATTENTION, packed_attention_forward)


@contextmanager
def packed_attention(model: nn.Module) -> Iterator[None]:
    """Use packed attention inside the block, and what the model had before after it.

    The rollout engine shares the model with the trainer, so the switch must not outlast the forward pass (and
    the backward pass, where activations are computed again in it).
    """
    config: Any = model.config
    before = config._attn_implementation
    config._attn_implementation = PACKED_ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before
