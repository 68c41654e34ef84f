import random

import numpy as np
import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

from grpo_pipeline.errors import UserError
from grpo_pipeline.models import scoring
from grpo_pipeline.models.aggregate import score_solutions
from grpo_pipeline.models.reward import RewardModel
from grpo_pipeline.models.scoring import score_outcomes, score_steps
from grpo_pipeline.models.sequences import insert_tags
from grpo_pipeline.schemas import TABLES


def frames(count=12, seed=0, *, longest=30):
    """Rollouts of random tokens with random step ends; every other one ends with EOS (1)."""
    rng = random.Random(seed)
    rollouts, steps = [], []
    for index in range(count):
        prompt = [rng.randrange(4, 70) for _ in range(rng.randint(1, 8))]
        response = [rng.randrange(4, 70) for _ in range(rng.randint(3, longest))]
        ends = sorted(rng.sample(range(len(response)), rng.randint(1, 3)))
        rollouts.append(
            {
                "rollout_id": f"r{index:02}",
                "problem_id": f"p{index // 3}",
                "round": 0,
                "prompt_token_ids": prompt,
                "token_ids": response + [1] * (index % 2),
            }
        )
        steps += [
            {"rollout_id": f"r{index:02}", "problem_id": f"p{index // 3}", "step_index": k, "token_end": end}
            for k, end in enumerate(ends)
        ]
    ids = pl.List(pl.Int32)
    return (
        pl.DataFrame(rollouts, schema_overrides={"prompt_token_ids": ids, "token_ids": ids, "round": pl.Int32}),
        pl.DataFrame(steps, schema_overrides={"step_index": pl.Int32, "token_end": pl.Int32}),
    )


@pytest.fixture(scope="module")
def prm(policy_folder):
    model = RewardModel.from_policy(policy_folder, "prm", 3)
    model.model.score.weight.data.mul_(20)  # scores that differ visibly
    return model


def test_scores_are_those_of_plain_transformers_one_solution_at_a_time(prm, tmp_path):
    rollouts, steps = frames()
    scores = score_steps(prm, rollouts.sample(fraction=1, shuffle=True, seed=1), steps, tokens_per_batch=60)
    prm.save(tmp_path, parents=[], settings={})
    plain = AutoModelForTokenClassification.from_pretrained(tmp_path)
    expected = []
    for rollout in rollouts.iter_rows(named=True):
        ids = torch.tensor([rollout["prompt_token_ids"] + rollout["token_ids"]])
        logits = plain(ids).logits[0, :, 0]
        ends = steps.filter(rollout_id=rollout["rollout_id"])["token_end"].to_list()
        expected += [logits[len(rollout["prompt_token_ids"]) + end].sigmoid().item() for end in ends]
    assert scores["score"].to_list() == pytest.approx(expected, abs=1e-5)
    assert scores.select("rollout_id", "step_index").equals(steps.select("rollout_id", "step_index"))
    assert max(expected) - min(expected) > 0.2


def test_columns_are_the_tables(prm):
    scores = score_steps(prm, *frames())
    schema = TABLES["step_scores"].schema
    assert set(scores.columns) == set(schema.names)
    assert scores.select(schema.names).to_arrow().schema.field("score").type == schema.field("score").type
    assert scores["step_index"].dtype == pl.Int32
    assert scores["prm_id"].unique().to_list() == [prm.id]


def test_no_rollouts_give_an_empty_frame(prm):
    rollouts, steps = frames()
    assert score_steps(prm, rollouts.clear(), steps).height == 0


@pytest.mark.parametrize("budget", [1, 37, 10_000])
def test_batching_changes_nothing(prm, budget):
    rollouts, steps = frames(20, 5)
    one = score_steps(prm, rollouts, steps, tokens_per_batch=budget)
    assert one["score"].to_list() == pytest.approx(score_steps(prm, rollouts, steps)["score"].to_list(), abs=1e-6)


def test_out_of_memory_halves_the_batch_and_goes_on(prm, monkeypatch):
    rollouts, steps = frames(20, 6)
    expected = score_steps(prm, rollouts, steps)
    real, sizes = scoring.Runner.hidden, []

    def small_memory(runner, batch, model=0):
        sizes.append(batch.n_tokens)
        if batch.n_tokens > 100:
            raise torch.OutOfMemoryError("no room")
        return real(runner, batch, model)

    monkeypatch.setattr(scoring.Runner, "hidden", small_memory)
    got = score_steps(prm, rollouts, steps, tokens_per_batch=512)
    assert got["score"].to_list() == pytest.approx(expected["score"].to_list(), abs=1e-6)
    assert sizes[0] > 256
    assert max(sizes[-4:]) <= 64  # 512 and 256 and 128 did not fit


def test_one_sequence_that_does_not_fit_memory_is_a_users_error(prm, monkeypatch):
    def no_memory(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(scoring.Runner, "hidden", no_memory)
    with pytest.raises(UserError, match="out of memory with 16 tokens"):
        score_steps(prm, *frames())


def test_other_errors_are_not_taken_for_memory(prm, monkeypatch):
    def broken(*_):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(scoring.Runner, "hidden", broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        score_steps(prm, *frames())


def test_sharing_a_prompt_and_packing_change_no_logit(prm):
    rng = random.Random(3)
    prompt = [rng.randrange(4, 70) for _ in range(7)]
    # The first is judged inside the prompt itself, and ends there.
    responses = [[], *([rng.randrange(4, 70) for _ in range(n)] for n in (1, 5, 12, 12))]
    sequences = [np.array(prompt + response, dtype=np.int32) for response in responses]
    positions = [np.array([3, len(ids) - 1], dtype=np.int32) for ids in sequences]
    padded, packed, shared = (
        scoring.judge(prm, sequences, positions, **how)
        for how in ({"packing": False}, {}, {"n_prompt": [len(prompt)] * len(sequences)})
    )
    for expected, one, other in zip(padded, packed, shared, strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-5)
        np.testing.assert_allclose(other, expected, atol=1e-5)
    assert len({logits[0].round(4) for logits in padded}) == 1  # a state of the prompt does not see the responses


def test_solution_longer_than_the_context_is_named(prm):
    rollouts, steps = frames(1)
    long = rollouts.with_columns(token_ids=pl.Series([list(range(4, 70))], dtype=pl.List(pl.Int32)))
    with pytest.raises(UserError, match="context of 64 tokens"):
        score_steps(prm, long, steps.head(1).with_columns(token_end=pl.lit(65, pl.Int32)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_end": 99}, "outside the response"),
        ({"token_end": -1}, "outside the response"),
        ({"step_index": 5}, "not 0, 1, 2"),
    ],
)
def test_steps_that_do_not_belong_to_their_tokens(prm, change, message):
    rollouts, steps = frames(1)
    with pytest.raises(ValueError, match=message):
        score_steps(prm, rollouts, steps.head(1).with_columns(**{k: pl.lit(v, pl.Int32) for k, v in change.items()}))


def test_steps_that_go_backwards(prm):
    rollouts, _ = frames(1)
    steps = pl.DataFrame(
        {"rollout_id": ["r00"] * 2, "problem_id": ["p0"] * 2, "step_index": [0, 1], "token_end": [2, 1]},
        schema_overrides={"step_index": pl.Int32, "token_end": pl.Int32},
    )
    with pytest.raises(ValueError, match="before the one in front"):
        score_steps(prm, rollouts, steps)


def test_outcome_scores_are_those_of_plain_transformers_with_padding_although_pad_is_eos(policy_folder, tmp_path):
    rollouts, _ = frames()
    RewardModel.from_policy(policy_folder, "orm", 1).save(tmp_path, parents=[], settings={})
    got = score_outcomes(RewardModel.load(tmp_path), rollouts, tokens_per_batch=50)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    rows = [a + b for a, b in rollouts.select("prompt_token_ids", "token_ids").iter_rows()]
    width = max(map(len, rows))
    logits = plain(torch.tensor([[*ids, *[1] * (width - len(ids))] for ids in rows])).logits[:, 0]
    assert got["score"].to_list() == pytest.approx(logits.sigmoid().tolist(), abs=1e-6)
    assert got["rollout_id"].to_list() == rollouts["rollout_id"].to_list()


def test_pairwise_scores_are_unbounded_rewards(policy_folder):
    rollouts, _ = frames(4)
    model = RewardModel.from_policy(policy_folder, "pairwise", 1)
    model.model.score.weight.data.mul_(100)
    assert score_outcomes(model, rollouts)["score"].abs().max() > 1


def test_kinds_are_checked(prm, policy_folder):
    rollouts, steps = frames(2)
    with pytest.raises(UserError, match="not by a prm"):
        score_outcomes(prm, rollouts)
    with pytest.raises(UserError, match="not by a orm"):
        score_steps(RewardModel.from_policy(policy_folder, "orm", 0), rollouts, steps)


def test_aggregates_by_hand():
    scores = pl.DataFrame(
        {
            "rollout_id": ["b", "a", "a", "a", "b"],
            "step_index": [1, 2, 0, 1, 0],
            "score": [0.25, 0.5, 0.75, 0.5, 0.5],
        },
        schema_overrides={"score": pl.Float32},
    )
    expected = {"min": [0.5, 0.25], "prod": [0.1875, 0.125], "last": [0.5, 0.25], "mean": [7 / 12, 0.375]}
    for how, values in expected.items():
        got = score_solutions(scores, how)
        assert got["rollout_id"].to_list() == ["a", "b"]
        assert got["score"].to_list() == pytest.approx(values)


def test_product_of_many_steps_does_not_underflow():
    scores = pl.DataFrame({"rollout_id": ["a"] * 60, "step_index": range(60), "score": [0.1] * 60})
    assert score_solutions(scores.cast({"score": pl.Float32}), "prod")["score"].item() == pytest.approx(1e-60, rel=1e-4)


def test_tags_stand_behind_steps_and_are_where_they_are_judged(policy_folder, tmp_path):
    """Math-Shepherd's form on sampled tokens: the tag after every step, + against - read there."""
    model = RewardModel.from_policy(policy_folder, "prm", 0, plus_minus=("+", "-"), tag="ки")
    model.save(tmp_path, parents=[], settings={})
    again = RewardModel.load(tmp_path)
    assert (again.plus_minus, again.tag) == (model.plus_minus, model.tag)
    rollouts, steps = frames(6)
    scores = score_steps(again, rollouts, steps, tokens_per_batch=60)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    plus, minus = model.plus_minus
    expected = []
    for rollout in rollouts.iter_rows(named=True):
        ids, places = list(rollout["prompt_token_ids"]), []
        ends = steps.filter(rollout_id=rollout["rollout_id"])["token_end"].to_list()
        for index, token in enumerate(rollout["token_ids"]):
            ids.append(token)
            if index in ends:
                ids.append(model.tag)
                places.append(len(ids) - 1)
        with torch.no_grad():
            logits = plain(torch.tensor([ids])).logits[0, places]
        expected += torch.softmax(logits[:, [plus, minus]], -1)[:, 0].tolist()
    assert scores["score"].to_list() == pytest.approx(expected, abs=1e-5)


def test_two_steps_that_end_in_one_token_have_a_tag_each():
    assert insert_tags([5, 6, 7, 8], [1, 1, 2], 9) == ([5, 6, 9, 9, 7, 9, 8], [2, 3, 5])
    assert insert_tags([5, 6], [1], None) == ([5, 6], [1])
