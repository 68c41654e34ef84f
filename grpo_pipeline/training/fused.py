"""Element-wise parts of a Llama layer, each with a backward pass of its own.

On a CPU the element-wise kernels of a small model take as long as its products: autograd runs RMSNorm as ten of
them and the rotation as six, each a pass over all activations, and as many backward. Here each is a few, and only
what the backward pass needs is kept. The plain forms stand beside them, for reading and for tests.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def plain_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """What `rms_norm` computes: x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def plain_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What `rotate` computes: the two halves of the last dimension as the parts of complex numbers, turned."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def plain_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """What `swiglu` computes: silu(gate) * up."""
    return functional.silu(gate) * up


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019) of (L, H) states with an (H,) weight."""
    result: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return result


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) of (L, heads, D) by (L, 1, D / 2) cosines and sines."""
    result: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return result


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU (Shazeer 2020) of two (L, I) tensors; keeps these two alone for the backward pass."""
    result: Tensor = _SwiGlu.apply(gate, up)  # type: ignore[no-untyped-call]
    return result


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = length.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()  # (L, 1)
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        # y = n w, n = x s:  dx = s (g w - n mean(g w n)),  dw = sum over tokens of g n
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        product = grads[0] * normed
        grad_weight = product.sum(0) if ctx.needs_input_grad[1] else None
        mean = torch.mv(product, weight).div_(x.shape[-1])[:, None]
        grad_x = (grads[0] * weight).sub_(normed.mul_(mean)).mul_(scale)
        return grad_x, grad_weight, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _turn(grads[0], *ctx.saved_tensors, -1), None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    result = torch.empty_like(x)
    (first, second), (out_first, out_second) = x.chunk(2, dim=-1), result.chunk(2, dim=-1)
    torch.mul(first, cos, out=out_first)
    out_first.addcmul_(second, sin, value=-direction)
    torch.mul(second, cos, out=out_second)
    out_second.addcmul_(first, sin, value=direction)
    return result


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad_up = functional.silu(gate).mul_(grads[0])
        grad_gate = torch.ops.aten.silu_backward(grads[0] * up, gate)
        return grad_gate, grad_up
