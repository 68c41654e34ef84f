"""Where a rollout's reward is decided: each part by hand, nulls, and users' own functions."""

import polars as pl
import pytest

from grpo_pipeline.config import PolicyConfig, RewardConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.rewards import needs_reward_model, reward_rollouts
from tests import custom_rewards

# verdict, answer, finish_reason, number of tokens, text
ROWS = [
    ("correct", "4", "stop", 10, "aa"),
    ("wrong", "5", "stop", 20, "bbbb"),
    ("no_answer", None, "stop", 40, "c"),
    ("timeout", "x^x", "stop", 30, "dddd"),
    ("correct", "4", "length", 60, "eeeee"),
    ("no_answer", None, "length", 60, "f"),
    ("timeout", "y", "length", 60, "gg"),
]
ROLLOUTS = pl.DataFrame(
    {
        "rollout_id": [f"r{i}" for i in range(7)],
        "problem_id": ["p"] * 7,
        "token_ids": [[1] * n for *_, n, _ in ROWS],
        "finish_reason": [row[2] for row in ROWS],
        "text": [row[4] for row in ROWS],
    },
    schema_overrides={"token_ids": pl.List(pl.Int32)},
)
CHECKED = pl.DataFrame(
    {
        "rollout_id": [f"r{i}" for i in range(7)],
        "problem_id": ["p"] * 7,
        "answer": [row[1] for row in ROWS],
        "verdict": [row[0] for row in ROWS],
    }
)


def reward(model_scores=None, max_tokens=60, **config):
    return reward_rollouts(
        ROLLOUTS, CHECKED.reverse(), RewardConfig(**config), model_scores=model_scores, max_tokens=max_tokens
    )


def test_the_default_is_the_verdict_and_a_timeout_is_undecided():
    table = reward()
    assert table["rollout_id"].to_list() == ROLLOUTS["rollout_id"].to_list()
    assert table["outcome_reward"].to_list() == [1, 0, 0, None, 0, 0, 0]
    assert table["reward_rule"].to_list() == [1, 0, 0, None, 0, 0, 0]
    assert table["reward_format"].to_list() == [1, 1, 0, 1, 1, 0, 1]
    assert table["reward_model"].to_list() == [None] * 7
    assert set(table.select(pl.exclude("rollout_id", "problem_id")).dtypes) == {pl.Float32}


def test_cut_off_responses_can_be_left_out_of_the_group():
    assert reward(truncated="null")["outcome_reward"].to_list() == [1, 0, 0, None, None, None, None]


def test_length_penalty_by_hand():
    # Free up to 20 tokens, -1 at 60.
    assert reward(length_target=20)["reward_length"].to_list() == [0, 0, -0.5, -0.25, -1, -1, -1]
    # Where the target lies at or beyond the limit no length costs anything.
    assert reward(length_target=60)["reward_length"].to_list() == [0] * 7


def test_the_outcome_is_the_weighted_sum():
    scores = pl.DataFrame({"rollout_id": [f"r{i}" for i in range(6, -1, -1)], "score": [0.5] * 7})
    table = reward(scores, rule_weight=1.0, model_weight=0.5, format_weight=0.2, length_weight=0.1, length_target=20)
    assert table["outcome_reward"].to_list() == pytest.approx([1.45, 0.45, 0.2, None, 0.35, 0.15, 0.35])


def test_a_null_in_a_part_of_weight_zero_does_not_matter():
    scores = pl.DataFrame({"rollout_id": ["r0", "r3"], "score": [0.5, 0.25]})
    assert reward(scores)["outcome_reward"].to_list() == [1, 0, 0, None, 0, 0, 0]
    table = reward(scores, rule_weight=0.0, model_weight=2.0)
    assert table["outcome_reward"].to_list() == [1, None, None, 0.5, None, None, None]
    assert table["reward_model"].to_list() == [0.5, None, None, 0.25, None, None, None]
    assert reward(rule_weight=0.0)["outcome_reward"].to_list() == [0] * 7


def test_custom_rewards_are_columns_of_their_own():
    custom_rewards.SEEN.clear()
    name = "tests.custom_rewards:"
    table = reward(rule_weight=0.0, custom={f"{name}brevity": 2.0, f"{name}even": 1.0, f"{name}array": 0.0})
    assert table["reward_brevity"].to_list() == pytest.approx([0.5, 0.25, 1, 0.25, 0.2, 1, 0.5])
    assert table["reward_even"].to_list() == [None, 0, 1, 0, 1, 0, 1]
    assert table["reward_array"].to_list() == list(range(7))
    assert table["outcome_reward"].to_list() == pytest.approx([None, 0.5, 3, 0.5, 1.4, 2, 2])
    assert [[*ROLLOUTS.columns, "answer", "verdict"]] == custom_rewards.SEEN


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.custom_rewards:short", "returned 6 rewards for 7 rollouts"),
        ("tests.custom_rewards:nan", "returned nan for 1 rollouts, first: rollout_id r1"),
        ("tests.custom_rewards:huge", "returned 1e+300 for 7 rollouts, first: rollout_id r0"),
        ("tests.custom_rewards:text", "returned a column of String"),
        ("tests.custom_rewards:number", "returned float; a column of 7 numbers is needed"),
        ("tests.custom_rewards:rule", "reward_rule, which another reward has"),
        ("tests.custom_rewards:absent", "has no function 'absent'"),
        ("tests.custom_rewards:NOT_A_FUNCTION", "has no function 'NOT_A_FUNCTION'"),
        ("tests.no_such_module:f", "cannot import 'tests.no_such_module'"),
        ("tests.custom_rewards", "not of the form 'module:function'"),
        (":f", "not of the form 'module:function'"),
    ],
)
def test_a_broken_custom_reward_is_named(name, message):
    with pytest.raises(UserError, match=r"reward\.custom") as caught:
        reward(custom={name: 1.0})
    assert message in str(caught.value)


def test_missing_inputs_are_named():
    with pytest.raises(UserError, match="1 rollouts have no verdict in checked, first: rollout_id r6"):
        reward_rollouts(ROLLOUTS, CHECKED[:6], RewardConfig(), max_tokens=60)
    with pytest.raises(UserError, match="model_weight > 0 needs"):
        reward(model_weight=1.0)


@pytest.mark.parametrize(
    ("method", "supervision", "weight", "needed"),
    [
        ("grpo", "process", 0.0, True),
        ("grpo", "outcome", 0.0, False),
        ("grpo", "outcome", 0.5, True),
        ("ppo", "process", 0.0, False),
        ("ppo", "process", 0.5, True),
        ("online_rft", "process", 0.5, False),
        ("sft", "process", 0.5, False),
    ],
)
def test_which_methods_read_a_reward_model(method, supervision, weight, needed):
    policy = {"method": method, "grpo": {"supervision": supervision}, "reward": {"model_weight": weight}}
    assert needs_reward_model(PolicyConfig.model_validate(policy)) is needed
