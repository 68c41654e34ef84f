"""One fused sampling step over a batch of logits, seeded per sample.

The draw of a token is a function of its address (seed of the sample, position in the response) and of the
probabilities alone: a counter-based hash gives a uniform number, and the inverse of the cumulative
distribution turns it into a token. There is no generator state, so a sample does not depend on which other
samples are in the batch, on their order, or on which of them have finished.
"""

import torch

from grpo_pipeline.engines.protocol import SamplingParams

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_BLOCK = 128
_BLOCKED_FROM = 2048


def uniforms(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in [0, 1) with 53 random bits, one for each (seed, position).

    SplitMix64 (Steele, Lea, Flood 2014) as a counter-based generator: the seed is mixed first, so that
    neighbouring seeds give unrelated streams.

    Args:
        seeds: int64, non-negative.
        positions: int64, 0-based index of the token in its response; broadcast with seeds.

    Returns:
        float64 of the broadcast shape.
    """
    bits = _mix(_mix(seeds) + (positions + 1) * _GOLDEN)
    return _shift_right(bits, 11).double() * 2.0**-53


def sample_tokens(
    logits: torch.Tensor, uniform: torch.Tensor, sampling: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose one token a row.

    Args:
        logits: (B, V), any float type; computed in float32.
        uniform: (B,) float64 in [0, 1), see `uniforms`.
        sampling: Temperature and top_p.

    Returns:
        Token ids (B,) int64, and their log-probabilities (B,) float32 under softmax(logits / temperature)
        before top_p (for greedy: at temperature 1).
    """
    scaled = logits.float()
    if sampling.temperature not in (0.0, 1.0):
        scaled = scaled / sampling.temperature
    probs = torch.softmax(scaled, dim=-1)
    if sampling.temperature == 0.0:
        tokens = scaled.argmax(dim=-1)
    else:
        weights = nucleus(probs, sampling.top_p) if sampling.top_p < 1.0 else probs
        tokens = invert_cdf(weights, uniform)
    # A token that can be drawn has a probability far above float32's smallest, so its logarithm is exact enough.
    return tokens, probs.gather(-1, tokens[:, None])[:, 0].log()


def nucleus(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Zero what is outside the smallest set of likeliest tokens whose mass reaches top_p.

    Holtzman et al. 2020, section 3.1; the token that crosses top_p is kept, so at least one stays.

    Args:
        probs: (B, V) probabilities.
        top_p: Mass in (0, 1].

    Returns:
        (B, V) weights, not normalised again.
    """
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    mass_before = ordered.cumsum(dim=-1) - ordered
    kept = ordered.masked_fill(mass_before >= top_p, 0.0)
    return torch.zeros_like(probs).scatter_(-1, order, kept)


def invert_cdf(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative weight exceeds uniform x total; never one of weight 0.

    For large vocabularies the search goes over blocks first, then inside one block, so that the running sum
    of the whole vocabulary is never built.

    Args:
        weights: (B, V) non-negative float32, not necessarily normalised, at least one positive a row.
        uniform: (B,) float64 in [0, 1).

    Returns:
        (B,) int64 token ids.
    """
    vocabulary = weights.shape[-1]
    if vocabulary < _BLOCKED_FROM:
        sums = weights.cumsum(dim=-1, dtype=torch.float64)
        return _first_above(sums, uniform * sums[:, -1])
    tail = -vocabulary % _BLOCK
    blocks = torch.nn.functional.pad(weights, (0, tail)).view(len(weights), -1, _BLOCK)  # (B, V / block, block)
    block_sums = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    target = uniform * block_sums[:, -1]
    block = _first_above(block_sums, target)
    inside = blocks[torch.arange(len(block), device=block.device), block].cumsum(dim=-1, dtype=torch.float64)
    before = block_sums.gather(-1, (block - 1).clamp(min=0)[:, None])[:, 0] * (block > 0)
    return block * _BLOCK + _first_above(inside, target - before)


def _first_above(sums: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    # Rounding may lift the target to the total itself; one step below it there is still a token above.
    target = torch.minimum(target, torch.nextafter(sums[:, -1], torch.zeros_like(target)))
    found = torch.searchsorted(sums, target[:, None].contiguous(), right=True)[:, 0]
    return found.clamp_(max=sums.shape[-1] - 1)  # NaN is above nothing; `Outputs.add` reports it


def _mix(state: torch.Tensor) -> torch.Tensor:
    state = (state ^ _shift_right(state, 30)) * _MIX_1
    state = (state ^ _shift_right(state, 27)) * _MIX_2
    return state ^ _shift_right(state, 31)


def _shift_right(state: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift: torch's int64 shift copies the sign bit."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)
