"""Losses of reward models: pure functions of logits, labels and weights.

Weights are each term's share in the whole optimizer step's loss, worked out once for the step, so that
micro-batches, gradient accumulation and data parallelism only ever add up: sum the parts, never average them.
"""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid


def labelled_weights(labels: Tensor) -> Tensor:
    """(S,) equal shares over the labelled steps of one optimizer step; unlabelled (NaN) ones get 0.

    Args:
        labels: (S,) float labels of *all* steps of the optimizer step, NaN where unlabelled.

    Raises:
        ValueError: No step is labelled.
    """
    labelled = ~torch.isnan(labels)
    count = int(labelled.sum())
    if count == 0:
        raise ValueError("no labelled step in this optimizer step; drop rows without labels before training")
    return labelled.to(labels.dtype) / count


def step_bce_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Scalar sum of weight * binary cross-entropy over the labelled steps (METHOD 2).

    Args:
        logits: (S,) logit of each step.
        labels: (S,) in [0, 1]; soft labels stay the floats they are. NaN marks an unlabelled step.
        weights: (S,) share of each step in the optimizer step's loss.

    Raises:
        ValueError: The shapes differ, or a label is outside [0, 1].
    """
    if not logits.shape == labels.shape == weights.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)} and weights {tuple(weights.shape)} differ"
        )
    labelled = ~torch.isnan(labels)
    targets = torch.where(labelled, labels, torch.zeros_like(labels)).to(logits.dtype)
    if bool(((targets < 0) | (targets > 1)).any()):
        raise ValueError("labels must be in [0, 1], or NaN for an unlabelled step")
    losses = binary_cross_entropy_with_logits(logits, targets, reduction="none")
    # where, not a product: a weight of 0 times an infinite loss would be NaN.
    return torch.where(labelled, losses * weights, torch.zeros_like(losses)).sum()


def pairwise_loss(chosen: Tensor, rejected: Tensor, weights: Tensor) -> Tensor:
    """Scalar sum of weight * -log sigmoid(r_w - r_l): Bradley-Terry (METHOD 2).

    Args:
        chosen: (P,) reward of the better response of each pair.
        rejected: (P,) reward of the worse one.
        weights: (P,) share of each pair in the optimizer step's loss.
    """
    return -(logsigmoid(chosen - rejected) * weights).sum()


def language_model_loss(logprobs: Tensor, weights: Tensor, beta_rm: float) -> Tensor:
    """Scalar beta_rm * sum of weight * -log p: the LM term on the chosen responses (Zheng et al. 2023).

    Args:
        logprobs: (L,) log-probability of each token of the chosen responses.
        weights: (L,) share of each token: 1 / (pairs of the step * tokens of its response).
        beta_rm: Weight of the term against `pairwise_loss`.
    """
    return -beta_rm * (logprobs * weights).sum()
