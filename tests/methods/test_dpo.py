"""DPO's loss and metrics by hand."""

import math

import pytest
import torch

from grpo_pipeline.config import DpoConfig
from grpo_pipeline.methods.base import TokenBatch
from grpo_pipeline.methods.dpo import Dpo
from grpo_pipeline.methods.metrics import metric_means
from grpo_pipeline.methods.weights import token_weights, trained_lengths

# Two pairs. log pi / pi_ref summed over tokens: 1.0 - (-0.5) = 1.5 and -1 - 0.2 = -1.2; as means: 0.5 + 0.5, -1 - 0.1.
ROW = torch.tensor([0, 0, 1, 2, 3, 3])
LOG_RATIO = torch.tensor([0.4, 0.6, -0.5, -1.0, 0.3, -0.1], dtype=torch.float64)


def batch(method):
    mask = torch.ones(6, dtype=torch.bool)
    lengths = trained_lengths(ROW, mask, 4)
    weights = token_weights(lengths, ROW, mask, method.normalisation, dtype=torch.float64)
    reference = torch.full((6,), -2.0, dtype=torch.float64)
    return TokenBatch(reference + LOG_RATIO, weights, ROW, torch.zeros(6, dtype=torch.float64), ref_logprobs=reference)


def loss_of(*margins):
    return sum(math.log(1 + math.exp(-m)) for m in margins) / len(margins)


def test_standard_form():
    method = Dpo(DpoConfig(beta=0.5))
    result = method.loss(batch(method))
    assert result.loss.item() == pytest.approx(loss_of(0.75, -0.6), abs=1e-12)
    assert metric_means(result.metrics) == pytest.approx(
        {
            "rewards/chosen": 0.0,
            "rewards/rejected": (-0.25 + 0.1) / 2,
            "rewards/margins": (0.75 - 0.6) / 2,
            "rewards/accuracies": 0.5,
            "logps/chosen": (-3 - 3) / 2,
            "logps/rejected": (-2.5 - 3.8) / 2,
        }
    )


def test_length_normalised_form():
    method = Dpo(DpoConfig(beta=0.5, length_normalised=True))
    assert method.loss(batch(method)).loss.item() == pytest.approx(loss_of(0.5, -0.55), abs=1e-12)


def test_half_a_pair_is_refused():
    method = Dpo(DpoConfig())
    broken = TokenBatch(
        LOG_RATIO[:3], torch.ones(3), torch.tensor([0, 1, 2]), torch.zeros(3), ref_logprobs=LOG_RATIO[:3]
    )
    with pytest.raises(ValueError, match="got 3 rows"):
        method.loss(broken)
