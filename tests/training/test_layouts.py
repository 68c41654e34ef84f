import numpy as np
import pytest
import torch

from grpo_pipeline.training.batching import Row, plan_packed, plan_padded, response_row
from grpo_pipeline.training.layouts import collate_packed, collate_padded, read_hidden
from grpo_pipeline.training.packed_attention import PACKED_ATTENTION, packed_attention
from tests.training.toy_policies import make_model, make_rows

CPU = torch.device("cpu")


def one_by_one(model, rows):
    """The oracle: every row alone through the model, no padding, no packing, default positions."""
    states = [model.base_model(torch.tensor(row.tokens[None])).last_hidden_state[0][row.read] for row in rows]
    return torch.cat(states)


def states_and_gradient(model, rows, collate, chosen):
    model.zero_grad()
    batch = collate(rows, chosen, 2, CPU)
    hidden = read_hidden(model.base_model, batch)
    weights = torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype).view_as(hidden)
    (hidden * weights).sum().backward()
    return hidden.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("collate", [collate_padded, collate_packed])
def test_both_forms_equal_each_row_alone(collate, kv_heads):
    model, rows = make_model(kv_heads=kv_heads), make_rows()
    hidden, gradient = states_and_gradient(model, rows, collate, list(range(len(rows))))
    model.zero_grad()
    expected = one_by_one(model, rows)
    torch.testing.assert_close(hidden, expected.detach(), rtol=0, atol=1e-8)
    weights = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).view_as(expected)
    (expected * weights).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradient[name], parameter.grad, rtol=0, atol=1e-8)


@pytest.mark.parametrize("collate", [collate_padded, collate_packed])
def test_float32_is_as_close_as_its_digits(collate):
    model, rows = make_model(dtype=torch.float32), make_rows(seed=3)
    hidden, _ = states_and_gradient(model, rows, collate, list(range(len(rows))))
    torch.testing.assert_close(hidden, one_by_one(model, rows).detach(), rtol=1e-5, atol=1e-5)


def test_rows_without_a_prompt_and_reads_inside_the_prompt(model):
    rng = np.random.default_rng(1)
    shared = rng.integers(0, 37, 5)
    rows = [
        Row(rng.integers(0, 37, 7), 0, np.array([2, 6])),
        Row(np.concatenate([shared, rng.integers(0, 37, 3)]), 5, np.array([0, 3, 4, 7])),
        Row(np.concatenate([shared, rng.integers(0, 37, 6)]), 5, np.array([4, 10])),
        Row(shared.copy(), 5, np.array([4])),  # nothing but the prompt
        Row(rng.integers(0, 37, 1), 0, np.array([0])),
    ]
    order = [4, 1, 3, 0, 2]
    for collate in (collate_padded, collate_packed):
        batch = collate(rows, order, 2, CPU)
        hidden = read_hidden(model.base_model, batch)
        torch.testing.assert_close(hidden, one_by_one(model, [rows[i] for i in order]), rtol=0, atol=1e-8)
        assert batch.row.tolist() == [0, 1, 1, 1, 1, 2, 3, 3, 4, 4]
        assert batch.rows == tuple(order)


def test_packed_form_runs_each_prompt_once():
    rows = [response_row([5, 6, 7, 8], [9] * n) for n in (1, 2, 3)]
    assert collate_packed(rows, [0, 1, 2], 0, CPU).n_tokens == 4 + 1 + 2 + 3
    assert collate_padded(rows, [0, 1, 2], 0, CPU).n_tokens == 3 * 7


def test_attention_is_put_back_after_a_failure(model):
    before = model.config._attn_implementation

    def fail():
        with packed_attention(model):
            assert model.config._attn_implementation == PACKED_ATTENTION
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("plan", [plan_padded, plan_packed])
@pytest.mark.parametrize("budget", [1, 20, 40, 10_000])
def test_plans_hold_every_row_once_within_the_budget(plan, budget):
    rows = make_rows(seed=5, groups=6)
    batches = plan(rows, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(rows)))
    collate = collate_padded if plan is plan_padded else collate_packed
    for batch in batches:
        assert collate(rows, batch, 2, CPU).n_tokens <= budget or len(batch) == 1


def test_packed_micro_batches_are_balanced():
    rows = [response_row([g + 1], [3] * (10 + g)) for g in range(12)]
    sizes = [sum(len(rows[i].tokens) for i in batch) for batch in plan_packed(rows, 60)]
    assert max(sizes) - min(sizes) <= 12
    assert max(sizes) <= 60


def test_rows_refuse_what_cannot_be_predicted():
    with pytest.raises(ValueError, match="needs a prompt and a response"):
        response_row([], [1])
    with pytest.raises(ValueError, match="leave the row"):
        Row(np.array([1, 2]), 1, np.array([2]))
