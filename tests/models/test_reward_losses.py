import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from grpo_pipeline.models.reward_losses import labelled_weights, language_model_loss, pairwise_loss, step_bce_loss

NAN = math.nan


def test_soft_label_of_three_tenths_by_hand():
    # logit 0: p = 0.5, so the loss is log 2 whatever the label; its gradient is p - y = 0.5 - 0.3.
    logits = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0.3], dtype=torch.float64)
    loss = step_bce_loss(logits, labels, labelled_weights(labels))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert logits.grad.item() == pytest.approx(0.2)


def test_unlabelled_steps_have_no_part_and_no_gradient():
    logits = torch.tensor([0.0, 1e30, -2.0], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1.0, NAN, 0.0], dtype=torch.float64)
    weights = labelled_weights(labels)
    assert weights.tolist() == [0.5, 0.0, 0.5]
    loss = step_bce_loss(logits, labels, weights)
    loss.backward()
    assert loss.item() == pytest.approx((math.log(2) + math.log(1 + math.exp(-2))) / 2)
    assert logits.grad[1].item() == 0.0


def test_hard_labels_match_scikit_learn():
    logits = torch.tensor([0.3, -1.2, 2.0, 0.0], dtype=torch.float64)
    labels = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    loss = step_bce_loss(logits, labels, labelled_weights(labels))
    assert loss.item() == pytest.approx(log_loss(labels.numpy(), logits.sigmoid().numpy()))


@given(st.integers(1, 12), st.integers(0, 2**31), st.data())
def test_micro_batches_add_up_to_one_batch(size, seed, data):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, generator=generator, dtype=torch.float64)
    labels = torch.rand(size, generator=generator, dtype=torch.float64)
    labels[1:][torch.rand(size - 1, generator=generator) < 0.4] = NAN
    weights = labelled_weights(labels)
    cut = data.draw(st.integers(0, size))
    whole = step_bce_loss(logits, labels, weights)
    parts = sum(step_bce_loss(logits[part], labels[part], weights[part]) for part in (slice(0, cut), slice(cut, size)))
    assert parts.item() == pytest.approx(whole.item(), abs=1e-12)


def test_no_label_at_all_is_an_error():
    with pytest.raises(ValueError, match="no labelled step"):
        labelled_weights(torch.tensor([NAN, NAN]))


@pytest.mark.parametrize("label", [-0.1, 1.5])
def test_labels_outside_the_unit_interval_are_refused(label):
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        step_bce_loss(torch.zeros(1), torch.tensor([label]), torch.ones(1))


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="differ"):
        step_bce_loss(torch.zeros(2), torch.zeros(3), torch.zeros(2))


def test_bradley_terry_by_hand():
    # sigmoid(1 - 1 + log 3) = 3 / 4, sigmoid(0) = 1 / 2.
    chosen = torch.tensor([1.0 + math.log(3), 5.0], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([1.0, 5.0], dtype=torch.float64)
    loss = pairwise_loss(chosen, rejected, torch.tensor([0.5, 0.5], dtype=torch.float64))
    loss.backward()
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)
    assert chosen.grad.tolist() == pytest.approx([-0.5 * 0.25, -0.5 * 0.5])


def test_language_model_term_by_hand():
    logprobs = torch.log(torch.tensor([0.5, 0.25], dtype=torch.float64))
    loss = language_model_loss(logprobs, torch.tensor([0.5, 0.5], dtype=torch.float64), beta_rm=0.1)
    assert loss.item() == pytest.approx(0.1 * 1.5 * math.log(2))
