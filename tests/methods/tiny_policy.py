"""A categorical policy small enough for gradients by hand, and batches of its samples.

log pi_t = log_softmax(x_t W)[a_t] with one context vector x_t a token, so that
grad_W log pi_t = x_t (onehot(a_t) - pi_t)^T, which no autograd is needed for.
"""

from dataclasses import replace

import torch

from grpo_pipeline.methods.base import TokenBatch
from grpo_pipeline.methods.weights import token_weights, trained_lengths

CONTEXT, VOCABULARY = 5, 7


class TinyPolicy:
    def __init__(self, lengths, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.lengths = list(lengths)
        n = sum(self.lengths)
        self.row = torch.repeat_interleave(torch.arange(len(self.lengths)), torch.tensor(self.lengths))
        self.contexts = torch.randn(n, CONTEXT, dtype=torch.float64, generator=generator)
        self.actions = torch.randint(VOCABULARY, (n,), generator=generator)
        self.matrix = torch.randn(CONTEXT, VOCABULARY, dtype=torch.float64, generator=generator, requires_grad=True)
        self.generator = generator

    def logprobs(self, matrix=None):
        matrix = self.matrix if matrix is None else matrix
        return torch.log_softmax(self.contexts @ matrix, -1)[torch.arange(len(self.actions)), self.actions]

    def gradient_by_hand(self, per_token):
        """sum_t per_token_t * grad log pi_t, (CONTEXT, VOCABULARY)."""
        with torch.no_grad():
            probabilities = torch.softmax(self.contexts @ self.matrix, -1)
        onehot = torch.nn.functional.one_hot(self.actions, VOCABULARY).double()
        return torch.einsum("n,nc,nv->cv", per_token, self.contexts, onehot - probabilities)

    def other(self, distance):
        """Log-probabilities of a policy at some distance from this one."""
        step = torch.randn(CONTEXT, VOCABULARY, dtype=torch.float64, generator=self.generator)
        return self.logprobs(self.matrix.detach() + distance * step)

    def noise(self):
        return torch.randn(len(self.row), dtype=torch.float64, generator=self.generator)

    def batch(self, normalisation, *, mask=None, groups=None, max_tokens=None, **tensors):
        """The whole step as one batch."""
        mask = torch.ones_like(self.row, dtype=torch.bool) if mask is None else mask
        weights = token_weights(
            trained_lengths(self.row, mask, len(self.lengths)),
            self.row,
            mask,
            normalisation,
            groups=groups,
            max_tokens=max_tokens,
            dtype=torch.float64,
        )
        tensors.setdefault("advantages", torch.zeros_like(weights))
        return TokenBatch(logprobs=self.logprobs(), weights=weights, row=self.row, **tensors)


def micro_batches(batch, row_counts):
    """Cut a batch into micro-batches of so many rows each, rows numbered from 0 in each of them."""
    start = 0
    for count in row_counts:
        inside = (batch.row >= start) & (batch.row < start + count)
        cut = {
            name: value[inside]
            for name, value in vars(batch).items()
            if isinstance(value, torch.Tensor) and name != "row"
        }
        yield replace(batch, row=batch.row[inside] - start, **cut)
        start += count
    assert start == int(batch.row[-1]) + 1, "row_counts do not cover the batch"


def assert_gradient(method, policy, batch, row_counts=None):
    """Autograd's gradient of the summed micro-batch losses is -sum_t weights_t GC_t grad log pi_t, to 1e-8."""
    parts = [batch] if row_counts is None else list(micro_batches(batch, row_counts))
    loss = sum(method.loss(part).loss for part in parts)
    (gradient,) = torch.autograd.grad(loss, policy.matrix, retain_graph=True)
    coefficient = torch.cat([method.coefficient(part) for part in parts])
    assert not coefficient.requires_grad
    expected = policy.gradient_by_hand(batch.weights * coefficient)
    assert expected.abs().max() > 1e-3, "the test must have a gradient to compare"
    torch.testing.assert_close(-gradient, expected, rtol=0, atol=1e-8)
    return coefficient
