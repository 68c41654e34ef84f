"""Per-token estimators of KL(pi_theta || pi_ref) from sampled tokens (Schulman 2020, "Approximating KL Divergence").

Both are unbiased only for tokens sampled from pi_theta itself. d = log pi_theta - log pi_ref.
"""

import torch
from torch import Tensor


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """(N,) d: unbiased, of either sign, high variance."""
    return logprobs - ref_logprobs


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """(N,) exp(-d) - (-d) - 1: non-negative and unbiased; GRPO's KL (DeepSeekMath, eq. 4)."""
    negative = ref_logprobs - logprobs
    # expm1 keeps the digits that exp(x) - 1 loses where the policies nearly agree, which is where training starts.
    return torch.expm1(negative) - negative
