"""Log-probabilities of given tokens from hidden states, without the (tokens x vocabulary) matrix.

`token_logprobs` works through the tokens in chunks, forward and backward; a chunk's logits exist one at a
time. `plain_logprobs` is the same in three lines, for reading and for tests.
"""

from typing import Any

import torch
from torch import Tensor, nn

CHUNK_ELEMENTS = 1 << 24
"""Logits that exist at once (64 MB in float32). Each chunk reads the head and adds to its gradient once, so smaller
ones spend more time on these than on their products."""


def plain_logprobs(hidden: Tensor, head: nn.Linear, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """What `token_logprobs` computes, with every logit at once."""
    logprobs = torch.log_softmax(head(hidden).to(_accumulator(hidden)) / temperature, dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1).detach()
    return logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy


def token_logprobs(
    hidden: Tensor, head: nn.Linear, targets: Tensor, temperature: float, *, with_entropy: bool = True
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target under softmax(head(hidden) / temperature), and the entropy.

    Args:
        hidden: (N, H) last hidden states.
        head: The output projection to V logits.
        targets: (N,) int64 token ids in [0, V).
        temperature: Divides the logits, > 0: the temperature the tokens were sampled at.
        with_entropy: Without it the entropies are all 0, and two passes over the logits are saved.

    Returns:
        (N,) log-probabilities in float32 (float64 for float64 states), with gradients to states and head; (N,)
        entropy in nats, without gradient.
    """
    if not temperature > 0:
        raise ValueError(f"log-probabilities need a temperature above 0, got {temperature}")
    if torch.is_autocast_enabled(hidden.device.type):
        # autograd.Function sees no autocast: cast here, so that both directions run in one type.
        kind = torch.get_autocast_dtype(hidden.device.type)
        bias = None if head.bias is None else head.bias.to(kind)
        return _apply(hidden.to(kind), head.weight.to(kind), bias, targets, temperature, with_entropy)
    return _apply(hidden, head.weight, head.bias, targets, temperature, with_entropy)


def _apply(*arguments: Any) -> tuple[Tensor, Tensor]:
    logprobs, entropy = _TokenLogprobs.apply(*arguments)  # type: ignore[no-untyped-call]
    return logprobs, entropy


def _accumulator(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _chunk_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias).to(_accumulator(hidden))
    return logits if temperature == 1.0 else logits.div_(temperature)


class _TokenLogprobs(torch.autograd.Function):
    """d log p_t / d logits = (onehot(t) - p) / temperature.

    The backward pass computes p again, a chunk at a time; where there is one chunk alone, its p is kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        n = hidden.shape[0]
        logprobs = hidden.new_empty(n, dtype=_accumulator(hidden))
        entropy = torch.zeros_like(logprobs)
        step = max(1, CHUNK_ELEMENTS // weight.shape[0])
        probs = None
        for start in range(0, n, step):
            part = slice(start, start + step)
            every = torch.log_softmax(_chunk_logits(hidden[part], weight, bias, temperature), dim=-1)
            logprobs[part] = every.gather(-1, targets[part, None]).squeeze(-1)
            if with_entropy:
                probs = every.exp()
                entropy[part] = -torch.einsum("nv,nv->n", probs, every)
        kept = probs if n <= step else None
        ctx.save_for_backward(hidden, weight, bias, targets, kept)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, bias, targets, kept = ctx.saved_tensors
        grad = grads[0] / ctx.temperature
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        kind = _accumulator(hidden)
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=kind) if need_weight else None
        grad_bias = torch.zeros_like(bias, dtype=kind) if need_bias and bias is not None else None
        step = max(1, CHUNK_ELEMENTS // weight.shape[0])
        for start in range(0, hidden.shape[0], step):
            part = slice(start, start + step)
            if kept is None:
                delta = torch.softmax(_chunk_logits(hidden[part], weight, bias, ctx.temperature), dim=-1)
                delta.mul_(-grad[part, None])
            else:
                delta = kept * -grad[:, None]
            delta.scatter_add_(-1, targets[part, None], grad[part, None])
            if grad_bias is not None:
                grad_bias += delta.sum(0)
            delta = delta.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = delta @ weight
            if grad_weight is not None:
                grad_weight.addmm_(delta.t(), hidden[part]) if kind == hidden.dtype else grad_weight.add_(
                    (delta.t() @ hidden[part]).to(kind)
                )
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
        )
