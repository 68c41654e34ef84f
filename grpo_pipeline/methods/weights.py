"""Where the policy loss is masked and normalised: the share of each token in the optimizer step's loss.

All tokens of a rollout have the same share, and it follows from how many trained tokens each rollout of the
*whole optimizer step* has, over all micro-batches and all ranks. So every process can work out its tokens'
shares from the R gathered lengths, and losses of micro-batches and ranks are only ever summed. (Where data
parallelism averages gradients over W ranks, as DDP does, the loss is multiplied by W.)

With |o_i| trained tokens in rollout i of R, in Q groups of sizes G_q:

| normalisation | share of a token | source |
|---|---|---|
| grpo | 1 / (Q G_q abs(o_i)), which is 1 / (R abs(o_i)) for equal groups | DeepSeekMath, eq. 3 (arXiv 2402.03300) |
| dapo, bnpo | 1 / sum_i abs(o_i) | DAPO, eq. 8 (arXiv 2503.14476) |
| dr_grpo | 1 / (Q G_q max_tokens) | Dr. GRPO (arXiv 2503.20783), as TRL normalises it |
| pair_mean | 1 / (P abs(o_i)) for P = R / 2 pairs | DPO, length-normalised |
| pair_sum | 1 / P | DPO (arXiv 2305.18290) |

TRL's bnpo takes the token mean of each micro-batch; here the batch is the whole step, so it is dapo's. A
rollout without a trained token (cut off, with mask_truncated) still counts in R and G_q, as in TRL: it
contributes 0.
"""

from typing import Literal

import torch
from torch import Tensor

Normalisation = Literal["grpo", "bnpo", "dapo", "dr_grpo", "pair_mean", "pair_sum"]


def trained_lengths(row: Tensor, mask: Tensor, n_rows: int) -> Tensor:
    """(n_rows,) int64: trained tokens of each rollout, from `row` (N,) int64 and `mask` (N,) bool."""
    return torch.bincount(row[mask], minlength=n_rows)


def mask_truncated(mask: Tensor, row: Tensor, truncated: Tensor) -> Tensor:
    """(N,) bool `mask` without the tokens of cut-off rollouts; `truncated` is (R,) bool."""
    return mask & ~truncated[row]


def token_weights(
    lengths: Tensor,
    row: Tensor,
    mask: Tensor,
    normalisation: Normalisation,
    *,
    groups: Tensor | None = None,
    max_tokens: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The share of each token in the optimizer step's loss.

    Args:
        lengths: (R,) int64, trained tokens of every rollout of the whole optimizer step (`trained_lengths`).
        row: (N,) int64 in [0, R): whose token it is. The N tokens may be those of one rank only.
        mask: (N,) bool, True = trained: what was sampled, the first EOS included.
        normalisation: A row of the table above; a method says its own in `Method.normalisation`.
        groups: (R,) int64, the group (problem and exploration step) of each rollout; None for equal groups.
        max_tokens: Longest possible response, needed by dr_grpo.
        dtype: Type of the result.

    Returns:
        (N,) weights, 0 where mask is False. For grpo, dapo and bnpo they add up to 1 over the step, less the
        share of rollouts without a trained token.
    """
    shares = rollout_weights(lengths, normalisation, groups=groups, max_tokens=max_tokens)
    return torch.where(mask, shares[row], 0.0).to(dtype)


def rollout_weights(
    lengths: Tensor,
    normalisation: Normalisation,
    *,
    groups: Tensor | None = None,
    max_tokens: int | None = None,
) -> Tensor:
    """(R,) float64: the share of each trained token of each rollout; arguments as in `token_weights`.

    Raises:
        ValueError: For dr_grpo without max_tokens or with a longer rollout, and for an odd number of rows
            where rows come as pairs.
    """
    n_rows = lengths.numel()
    lengths = lengths.double()
    if normalisation in ("dapo", "bnpo"):
        return lengths.sum().clamp(min=1).reciprocal().expand(n_rows)
    if normalisation in ("pair_mean", "pair_sum"):
        if n_rows % 2:
            raise ValueError(f"{normalisation}: rows come as pairs (chosen, rejected), got {n_rows} rows")
        pair_share = torch.full_like(lengths, 2 / max(n_rows, 1))
        return pair_share / lengths.clamp(min=1) if normalisation == "pair_mean" else pair_share
    share = _rollout_share(lengths, groups)
    if normalisation == "grpo":
        return share / lengths.clamp(min=1)
    if max_tokens is None:
        raise ValueError("dr_grpo divides by the longest possible response: token_weights needs max_tokens")
    if n_rows and lengths.max() > max_tokens:
        raise ValueError(f"dr_grpo: a rollout has {int(lengths.max())} trained tokens, max_tokens is {max_tokens}")
    return share / max_tokens


def _rollout_share(lengths: Tensor, groups: Tensor | None) -> Tensor:
    """(R,) float64: a rollout's share in a mean over groups of means over their rollouts."""
    if groups is None:
        return torch.full_like(lengths, 1 / max(lengths.numel(), 1))
    if groups.shape != lengths.shape:
        raise ValueError(f"groups has shape {tuple(groups.shape)}, lengths {tuple(lengths.shape)}")
    _, code, size = torch.unique(groups, return_inverse=True, return_counts=True)
    own_size: Tensor = size[code].double()
    return own_size.mul(size.numel()).reciprocal()
