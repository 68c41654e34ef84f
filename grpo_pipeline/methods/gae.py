"""Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438, eq. 16) over flat responses."""

import torch
from torch import Tensor


def gae(rewards: Tensor, values: Tensor, row: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages of tokens, and the returns that the critic learns.

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lam A_{t+1}, within each response; what
    follows its last token has value 0.

    Args:
        rewards: (N,) reward of each response token (`ppo_rewards.token_rewards`).
        values: (N,) critic's value of the state before each token, that is what it says at the token before.
        row: (N,) int64, non-decreasing: whose token it is.
        gamma: Discount in [0, 1].
        lam: GAE's lambda in [0, 1]; 0 is one-step, 1 is Monte Carlo.

    Returns:
        (N,) advantages, and (N,) returns = advantages + values; both without gradient.
    """
    rewards, values = rewards.detach(), values.detach()
    if not row.numel():
        return torch.zeros_like(values), values
    _, line, sizes = torch.unique_consecutive(row, return_inverse=True, return_counts=True)
    place = torch.arange(row.numel(), device=row.device) - (sizes.cumsum(0) - sizes)[line]
    longest = int(sizes.max())
    # One column a token position, so that the recursion runs over positions and is vectorised over responses.
    reward_grid = values.new_zeros((longest, sizes.numel()))
    value_grid = values.new_zeros((longest + 1, sizes.numel()))
    reward_grid[place, line] = rewards
    value_grid[place, line] = values
    delta = reward_grid + gamma * value_grid[1:] - value_grid[:-1]
    advantage_grid = torch.zeros_like(delta)
    running = values.new_zeros(sizes.numel())
    for t in range(longest - 1, -1, -1):
        # Beyond a response's end delta is 0, so the recursion enters it with 0.
        running = delta[t] + gamma * lam * running
        advantage_grid[t] = running
    advantages = advantage_grid[place, line]
    return advantages, advantages + values
