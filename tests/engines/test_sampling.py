"""The fused sampling step against python integers, hand-worked cumulative sums and expected frequencies."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grpo_pipeline.engines.protocol import SamplingParams
from grpo_pipeline.engines.sampling import invert_cdf, nucleus, sample_tokens, uniforms

MASK = (1 << 64) - 1


def splitmix(state):
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**20))
def test_uniforms_equal_splitmix_in_python_integers(seed, position):
    bits = splitmix((splitmix(seed) + (position + 1) * 0x9E3779B97F4A7C15) & MASK)
    got = uniforms(torch.tensor([seed]), torch.tensor([position]))
    assert got.item() == (bits >> 11) / 2**53


def test_uniforms_are_uniform_and_uncorrelated_over_neighbouring_seeds():
    seeds = torch.arange(20_000)
    draws = uniforms(seeds, torch.zeros_like(seeds)).numpy()
    assert stats.kstest(draws, "uniform").pvalue > 1e-4
    # Under independence the correlation of 20,000 pairs has a standard error of 0.007.
    assert abs(stats.pearsonr(draws[1:], draws[:-1]).statistic) < 0.03
    later = uniforms(seeds, torch.ones_like(seeds)).numpy()
    assert abs(stats.pearsonr(draws, later).statistic) < 0.03


def test_invert_cdf_by_hand():
    weights = torch.tensor([[0.0, 1.0, 0.0, 2.0, 1.0]]).repeat(6, 1)
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53], dtype=torch.float64)
    assert invert_cdf(weights, uniform).tolist() == [1, 1, 3, 3, 4, 4]


@pytest.mark.parametrize("vocabulary", [7, 2048, 5000])
def test_invert_cdf_never_takes_a_token_of_weight_zero(vocabulary):
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(64, vocabulary, generator=generator)
    weights[torch.rand(64, vocabulary, generator=generator) < 0.7] = 0.0
    weights[:, 3] = 1e-30
    weights[:, -1] = 0.0
    for uniform in (torch.zeros(64).double(), torch.full((64,), 1 - 2**-53, dtype=torch.float64)):
        chosen = invert_cdf(weights, uniform)
        assert (weights.gather(-1, chosen[:, None]) > 0).all()


def test_blocked_search_equals_the_direct_one():
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(200, 4999, generator=generator).pow(8)
    uniform = torch.rand(200, generator=generator, dtype=torch.float64)
    sums = weights.double().cumsum(-1)
    expected = (sums <= (uniform * sums[:, -1])[:, None]).sum(-1)
    assert torch.equal(invert_cdf(weights, uniform), expected)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.0, 0.6)])
def test_frequencies_match_probabilities(temperature, top_p):
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    probs = torch.softmax(logits.double() / temperature, -1)
    if top_p < 1:  # 0.5458, 0.2008 (cumulative 0.747 > 0.6): tokens 0 and 1 stay
        probs = torch.tensor([probs[0], probs[1], 0, 0, 0]) / (probs[0] + probs[1])
    count = 20_000
    seeds = torch.arange(count)
    tokens, _ = sample_tokens(logits.repeat(count, 1), uniforms(seeds, seeds * 0), SamplingParams(temperature, top_p))
    seen = torch.bincount(tokens, minlength=5).double()
    assert (seen[probs == 0] == 0).all()
    keep = probs > 0
    assert stats.chisquare(seen[keep].numpy(), (probs[keep] * count).numpy()).pvalue > 1e-4


def test_logprobs_are_taken_at_the_temperature_and_before_top_p():
    logits = torch.tensor([[0.0, math.log(3.0)]])
    draw = torch.tensor([0.5], dtype=torch.float64)
    _, cold = sample_tokens(logits, draw, SamplingParams(temperature=0.5, top_p=0.5))
    assert cold.item() == pytest.approx(math.log(9 / 10), abs=1e-6)  # 3 ** (1 / 0.5) = 9 against 1
    token, greedy = sample_tokens(logits, draw, SamplingParams(temperature=0.0))
    assert token.item() == 1
    assert greedy.item() == pytest.approx(math.log(3 / 4), abs=1e-6)


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, [0, 1, 0]), (0.51, [1, 1, 0]), (0.8, [1, 1, 0]), (1.0, [1, 1, 1])])
def test_nucleus_by_hand(top_p, kept):
    probs = torch.tensor([[0.3, 0.5, 0.2]])
    assert (nucleus(probs, top_p) > 0).int().tolist() == [kept]


def test_nucleus_keeps_one_token_where_all_are_likely_alike():
    assert (nucleus(torch.full((1, 4), 0.25), 0.01) > 0).sum() == 1
