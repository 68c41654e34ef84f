"""Element-wise parts of a Llama layer, each with a backward pass of its own.

On a CPU the element-wise kernels of a small model take as long as its products: autograd runs RMSNorm as ten of
them and the rotation as six, each a pass over all activations, and as many backward. Here each is a few, and only
what the backward pass needs is kept. The plain forms stand beside them, for reading and for tests.
"""

from typing import Any

import torch
from torch import Tensor


def plain_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """What `rms_norm` computes: x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def plain_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What `rotate` computes, from transformers' sines: the halves of the last dimension as complex parts, turned."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019) of (L, H) states with an (H,) weight."""
    result: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return result


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) of (L, heads, D) by (L, 1, D) factors.

    Args:
        x: Queries or keys.
        cos: Cosines, the D / 2 of a position twice.
        sin: Sines, the first half negative: what `signed_sines` makes of transformers' own.
    """
    result: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return result


def signed_sines(sin: Tensor) -> Tensor:
    """Sines with the first half of the last dimension negative."""
    first, second = sin.chunk(2, dim=-1)
    return torch.cat([-first, second], dim=-1)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = length.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()  # (L, 1)
        ctx.save_for_backward(x, weight, scale)
        normed: Tensor = (x * scale).mul_(weight)
        return normed

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
        turned: Tensor = (x * cos).addcmul_(_swap_halves(x), sin)
        return turned

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors  # a turn back
        return (grads[0] * cos).addcmul_(_swap_halves(grads[0]), sin, value=-1), None, None


def _swap_halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([second, first], dim=-1)
