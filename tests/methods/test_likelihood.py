"""SFT, RFT and Online RFT by hand: which tokens' likelihood is raised, and by how much."""

import pytest
import torch

from grpo_pipeline.methods.base import TokenBatch
from grpo_pipeline.methods.metrics import metric_means
from grpo_pipeline.methods.online_rft import OnlineRft
from grpo_pipeline.methods.rft import Rft
from grpo_pipeline.methods.sft import Sft


def batch(rewards=(0.0, 0.0, 0.0)):
    # Two responses of two tokens and one token, and a masked token.
    return TokenBatch(
        logprobs=torch.tensor([-1.0, -3.0, -9.0, -5.0], dtype=torch.float64),
        weights=torch.tensor([0.25, 0.25, 0.0, 0.5], dtype=torch.float64),
        row=torch.tensor([0, 0, 0, 1]),
        advantages=torch.tensor([rewards[0], rewards[0], rewards[0], rewards[1]], dtype=torch.float64),
        entropy=torch.tensor([0.1, 0.2, 9.0, 0.6], dtype=torch.float64),
    )


def test_sft_is_the_mean_over_responses_of_their_token_means():
    result = Sft().loss(batch())
    assert result.loss.item() == pytest.approx((2 + 5) / 2, abs=1e-15)
    # The metrics are means over tokens.
    assert metric_means(result.metrics) == pytest.approx({"nll": 3.0, "entropy": 0.3})


@pytest.mark.parametrize("method", [Rft(), OnlineRft()])
def test_rft_counts_correct_responses_in_a_mean_over_all(method):
    result = method.loss(batch(rewards=(1.0, 0.0)))
    assert result.loss.item() == pytest.approx(2 / 2, abs=1e-15)
    assert metric_means(result.metrics) == pytest.approx({"nll": 2.0, "entropy": 0.3})
    nothing = method.loss(batch())
    assert nothing.loss.item() == 0
    assert "nll" not in metric_means(nothing.metrics)
