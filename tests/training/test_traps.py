"""The mistakes that trainers are known for, one test each."""

import math

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch

from grpo_pipeline.advantages import compute_advantages
from grpo_pipeline.config import GrpoConfig, ModelConfig, PolicyConfig, RewardModelConfig, TrainingConfig
from grpo_pipeline.labelling.steps import split_rollouts
from grpo_pipeline.methods.base import TokenBatch
from grpo_pipeline.methods.registry import make_method
from grpo_pipeline.models.reward_losses import labelled_weights, step_bce_loss
from grpo_pipeline.tables import conform, from_rows
from grpo_pipeline.training.actor import Actor
from grpo_pipeline.training.batching import response_row
from grpo_pipeline.training.exploration import Experience
from grpo_pipeline.training.loop import Part, optimizer_step, read_all
from grpo_pipeline.training.optimizer import Optimizer
from grpo_pipeline.training.reward_rows import labelled_rows
from grpo_pipeline.training.runner import Runner
from grpo_pipeline.training.token_rows import TokenRows
from grpo_pipeline.training.updates import add_weights, experience_rows, policy_loss
from tests.training.toy_policies import make_model, make_rows, make_tokenizer, save_policy

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def actor(tmp_path_factory):
    folder = save_policy(tmp_path_factory.mktemp("policy"))
    return Actor(folder, ModelConfig.model_validate({"device": "cpu"}), TrainingConfig())


class NoUpdate:
    """Stands for an optimizer, and keeps the gradients."""

    next_learning_rate = 0.0

    def __init__(self, model):
        self.model = model

    def zero_grad(self):
        self.model.zero_grad()

    def step(self):
        return 0.0


def runner_of(model, budget=16384, packing=True):
    settings = {"tokens_per_microbatch": budget, "packing": packing}
    return Runner([model], 0, TrainingConfig.model_validate(settings))


def token_rows(rows, seed=0, **columns):
    data = TokenRows(rows, CPU)
    generator = torch.Generator().manual_seed(seed)
    n = len(data.row)
    data.columns = {
        "advantages": torch.randn(n, generator=generator),
        "ref_logprobs": -5 + torch.randn(n, generator=generator),
        **columns,
    }
    return data


def gradients(actor, runner, data, config, temperature=1.0):
    method = make_method(PolicyConfig.model_validate({"method": "grpo", "grpo": config}))
    if "weights" not in data.columns:
        add_weights(data, method, groups=None, truncated=None, max_tokens=64)
    actor.model.zero_grad()
    loss_of = policy_loss(actor, runner, data, method.loss, temperature=temperature)
    metrics = optimizer_step({"": NoUpdate(actor.model)}, runner, [Part(data.rows, loss_of)])
    return metrics, {n: p.grad.clone() for n, p in actor.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
@pytest.mark.parametrize("packing", [True, False])
def test_unequal_micro_batches_add_up_to_one_big_batch(actor, loss_type, packing):
    data = token_rows(make_rows(groups=4, per_group=3, vocab=200))
    config = {"loss_type": loss_type, "beta": 0.1}
    whole, expected = gradients(actor, runner_of(actor.model, 10_000, packing), data, config)
    cut_runner = runner_of(actor.model, 40, packing)
    assert len({len(b) for b in cut_runner.plan(data.rows)}) > 1  # unequal
    cut, got = gradients(actor, cut_runner, data, config)
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-6, atol=1e-6)
    for name in ("loss", "kl", "entropy"):
        assert cut[name] == pytest.approx(whole[name], abs=1e-6)


def test_out_of_memory_halves_and_gives_the_same_step(actor, monkeypatch):
    data = token_rows(make_rows(groups=4, per_group=3, vocab=200))
    _, expected = gradients(actor, runner_of(actor.model, 10_000), data, {})
    runner = runner_of(actor.model, 80)
    calls = []
    read = Runner.read

    def short_of_memory(self, batch, reading, model=0):
        calls.append(batch.n_tokens)
        # The second micro-batch fails at first, when the first one's gradient is already there.
        if len(calls) == 2:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        return read(self, batch, reading, model)

    monkeypatch.setattr(Runner, "read", short_of_memory)
    _, got = gradients(actor, runner, data, {})
    assert runner.budget == 40
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-6, atol=1e-6)


def test_dropout_is_off_while_training(actor):
    # The toy policy's configuration asks for attention dropout of 0.25.
    data = token_rows(make_rows(vocab=200))
    runner = runner_of(actor.model, packing=False)
    first, second = (gradients(actor, runner, data, {})[1] for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_temperature_divides_the_logits(actor):
    row = response_row([3, 4, 5], [6, 7])
    data = token_rows([row])
    got = actor.read_logprobs(runner_of(actor.model), data, 0.7)
    logits = actor.model(torch.tensor(row.tokens[None])).logits[0, 2:4] / 0.7
    expected = torch.log_softmax(logits, -1)[[0, 1], [6, 7]]
    torch.testing.assert_close(got, expected.detach(), rtol=0, atol=1e-5)


def test_pad_id_equal_to_eos_id_changes_nothing(actor):
    eos = actor.tokenizer.eos_token_id
    assert actor.tokenizer.pad_token_id == eos
    # Prompts that hold the EOS id, responses that end in it, and rows of different lengths beside them.
    rows = [response_row([eos, 5, eos], [6, eos]), response_row([7], [8, 9, 10, 11, eos]), response_row([eos], [eos])]
    alone = [actor.read_logprobs(runner_of(actor.model), TokenRows([row], CPU), 1.0) for row in rows]
    for packing in (True, False):
        together = actor.read_logprobs(runner_of(actor.model, packing=packing), TokenRows(rows, CPU), 1.0)
        torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-5)


def test_left_padding_has_the_right_position_ids():
    model = make_model()
    rows = [response_row([5], [6, 7]), response_row(list(range(3, 15)), [8, 9, 10])]
    padded = read_all(runner_of(model, packing=False), rows, lambda batch: runner_of(model).hidden(batch))
    expected = torch.cat([model.base_model(torch.tensor(r.tokens[None])).last_hidden_state[0][r.read] for r in rows])
    torch.testing.assert_close(padded, expected.detach(), rtol=0, atol=1e-8)


def test_truncated_rollouts_can_be_left_out_of_the_loss(actor):
    rows = make_rows(groups=1, per_group=4, vocab=200)
    config = PolicyConfig.model_validate({"method": "grpo", "grpo": {"mask_truncated": True, "beta": 0.0}})
    truncated = [False, True, False, True]
    data = token_rows(rows)
    add_weights(data, make_method(config), groups=["p"] * 4, truncated=truncated, max_tokens=64)
    _, got = gradients(actor, runner_of(actor.model), data, {"beta": 0.0})
    kept = data.subset([0, 2])
    _, expected = gradients(actor, runner_of(actor.model), kept, {"beta": 0.0})
    assert data.columns["weights"][torch.isin(data.row, torch.tensor([1, 3]))].abs().sum() == 0
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-6, atol=1e-6)


def make_rollouts(tokens_of, group=2):
    tokenizer = make_tokenizer()
    rows = [
        {
            "rollout_id": f"r{i}",
            "problem_id": f"p{i // group}",
            "round": 1,
            "step": 1,
            "group_index": i % group,
            "policy_id": "m",
            "prompt_token_ids": [3, 4],
            "token_ids": list(tokens),
            "logprobs": [-1.0] * len(tokens),
            "text": tokenizer.decode(list(tokens), skip_special_tokens=True),
            "finish_reason": "stop",
            "temperature": 1.0,
            "top_p": 1.0,
            "seed": i,
        }
        for i, tokens in enumerate(tokens_of)
    ]
    return from_rows(rows, "rollouts")


def experience(rollouts, rewards, config, scores=None):
    steps = split_rollouts(rollouts, make_tokenizer(), "line")
    table = rollouts.select("rollout_id", "problem_id").with_columns(
        outcome_reward=pl.Series(rewards, dtype=pl.Float32), reward_rule=pl.Series(rewards, dtype=pl.Float32)
    )
    step_scores = None
    if scores is not None:
        step_scores = steps.select("rollout_id", "problem_id", "step_index").with_columns(
            score=pl.Series(scores, dtype=pl.Float32), prm_id=pl.lit("prm")
        )
    advantages = compute_advantages(rollouts, steps, table, step_scores, config)
    checked = table.select("rollout_id", "problem_id", verdict=pl.lit("correct"))
    return Experience(rollouts, checked, steps, step_scores, None, advantages)


def grpo_method(**config):
    return make_method(PolicyConfig.model_validate({"method": "grpo", "grpo": config}))


def test_zero_std_group_with_beta_still_has_the_kl_gradient(actor):
    """Equal rewards: advantage exactly 0, so what is left of the gradient is beta times the KL's."""
    config = GrpoConfig.model_validate({"supervision": "outcome", "beta": 0.5})
    rollouts = make_rollouts([[6, 7, 8], [9, 10]])
    data, _ = experience_rows(experience(rollouts, [1.0, 1.0], config), grpo_method(), CPU)
    assert data.columns["advantages"].tolist() == [0.0] * 5
    logprobs = actor.read_logprobs(runner_of(actor.model), data, 1.0)
    data.columns["ref_logprobs"] = logprobs + 0.3
    method = grpo_method(supervision="outcome", beta=0.5)
    add_weights(data, method, groups=None, truncated=None, max_tokens=8)
    batch = TokenBatch(
        logprobs=logprobs.requires_grad_(True),
        row=data.row,
        weights=data.columns["weights"],
        advantages=data.columns["advantages"],
        ref_logprobs=data.columns["ref_logprobs"],
    )
    method.loss(batch).loss.backward()
    # d k3 / d log pi = 1 - pi_ref / pi, so the loss's gradient is w * beta * (1 - e^0.3).
    expected = data.columns["weights"] * 0.5 * (1 - math.exp(0.3))
    torch.testing.assert_close(logprobs.grad, expected)


def test_null_reward_leaves_the_rollout_out_of_its_group():
    config = GrpoConfig.model_validate({"supervision": "outcome"})
    rollouts = make_rollouts([[6], [7, 8], [9]], group=3)
    data, kept = experience_rows(experience(rollouts, [1.0, None, 0.0], config), grpo_method(), CPU)
    half = 0.5 / (math.sqrt(0.5) + 1e-4)  # mean 0.5 and sample deviation of the two decided ones
    assert data.columns["advantages"].tolist() == pytest.approx([half, 0.0, 0.0, -half])
    assert kept["outcome_reward"].to_list() == [1.0, None, 0.0]


@pytest.mark.parametrize("name", ["online_rft", "ppo"])
def test_undecided_rollouts_are_left_out_where_there_is_no_group(name):
    """A check that ran out of time is no reward of 0: it must not count in the mean over responses."""
    config = GrpoConfig.model_validate({"supervision": "outcome"})
    rollouts = make_rollouts([[6], [7, 8], [9]], group=3)
    method = make_method(PolicyConfig.model_validate({"method": name}))
    data, kept = experience_rows(experience(rollouts, [1.0, None, 0.0], config), method, CPU)
    assert kept["outcome_reward"].to_list() == [1.0, 0.0]
    add_weights(data, method, groups=None, truncated=None, max_tokens=8)
    assert data.columns["weights"].tolist() == [0.5, 0.5]


def test_step_boundary_inside_a_token_and_a_response_with_one_step():
    """The piece "5\\n" closes the first step; a second response is one step with its EOS."""
    tokenizer = make_tokenizer()
    ids = tokenizer.encode("15\n+2")
    straddling = tokenizer.convert_tokens_to_ids("5Ċ")
    assert ids[1] == straddling
    split_inside = [*tokenizer.encode("1"), straddling, *tokenizer.encode("+2"), tokenizer.eos_token_id]
    one_step = [*tokenizer.encode("9"), tokenizer.eos_token_id]
    config = GrpoConfig.model_validate({"supervision": "process", "advantage_eps": 0.0})
    scores = [0.25, 0.5, 0.75]
    run = experience(make_rollouts([split_inside, one_step]), [1.0, 0.0], config, scores)
    assert run.steps["token_end"].to_list() == [1, 3, 0]
    data, _ = experience_rows(run, grpo_method(), CPU)
    # Pool 0.25, 0.5, 0.75: mean 0.5, sample deviation 0.25, so normalised -1, 0, 1; sums over steps to come.
    assert data.columns["advantages"].tolist() == pytest.approx([-1.0, -1.0, 0.0, 0.0, 0.0, 1.0, 1.0])


def test_soft_label_stays_what_it_is_through_parquet_loader_and_loss(tmp_path):
    frame = pl.DataFrame(
        {
            "rollout_id": ["a", "b"],
            "problem_id": ["p", "q"],
            "round": [0, 0],
            "split": ["train", "train"],
            "input_ids": [[4, 5, 6], [4, 7]],
            "step_positions": [[1, 2], [1]],
            "soft": [[0.3, None], [1.0]],
            "hard": [[1.0, None], [1.0]],
            "is_replay": [False, False],
        },
        schema_overrides={"soft": pl.List(pl.Float32), "hard": pl.List(pl.Float32)},
    )
    pq.write_table(conform(frame, "prm_dataset", "rows"), tmp_path / "rows.parquet")
    data = labelled_rows(pl.read_parquet(tmp_path / "rows.parquet"), RewardModelConfig(), None)
    assert data.labels[0].tolist() == [np.float32(0.3)]  # the unlabelled step is not a 0, it is not there
    assert data.rows[0].tokens.tolist() == [4, 5]
    logits, labels = torch.tensor([0.8, -0.2], requires_grad=True), torch.tensor([data.labels[0][0], 1.0])
    step_bce_loss(logits, labels, labelled_weights(labels)).backward()
    # d BCE / d logit = (sigmoid(logit) - label) / 2
    assert logits.grad[0].item() == pytest.approx((1 / (1 + math.exp(-0.8)) - 0.3) / 2, abs=1e-7)


def test_optimizer_refuses_a_gradient_that_is_not_finite():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = Optimizer({"w": parameter}, PolicyConfig().optimizer, 3)
    parameter.grad = torch.tensor([math.nan, 1.0])
    with pytest.raises(Exception, match="gradient of optimizer step 1 is nan"):
        optimizer.step()
    assert parameter.tolist() == [1.0, 1.0]
