"""Advantages by hand, against plain loops, and their invariants (METHOD 3)."""

import math
import statistics

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_pipeline.advantages import compute_advantages, outcome_advantages, process_advantages, token_advantages
from grpo_pipeline.config import GrpoConfig
from grpo_pipeline.errors import UserError

NAN = math.nan


def outcome(rewards, group=None, **settings):
    group = [0] * len(rewards) if group is None else group
    return outcome_advantages(np.array(rewards, dtype=float), np.array(group), **settings).tolist()


def process(rewards_by_rollout, group=None, **settings):
    group = [0] * len(rewards_by_rollout) if group is None else group
    rollout = [i for i, rewards in enumerate(rewards_by_rollout) for _ in rewards]
    flat = process_advantages(
        np.array([r for rewards in rewards_by_rollout for r in rewards], dtype=float),
        np.array(rollout, dtype=np.int64),
        np.array(group),
        **settings,
    ).tolist()
    return [[flat.pop(0) for _ in rewards] for rewards in rewards_by_rollout]


# Outcome supervision


def test_outcome_by_hand():
    # Mean 1/4, squared distances 9/16 + 3/16 = 3/4, over n - 1 = 3: std 1/2.
    assert outcome([1, 0, 0, 0], eps=0) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-15)
    assert outcome([1, 0, 0, 0], eps=0.5) == pytest.approx([0.75, -0.25, -0.25, -0.25], abs=1e-15)
    assert outcome([1, 0, 0, 0], scale=False) == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize("value", [0, 1, 0.1, 1 / 3, -7.3, 1e-30, 12345.678])
@pytest.mark.parametrize("size", [2, 3, 7, 64])
@pytest.mark.parametrize("scale", [True, False])
def test_equal_rewards_give_exactly_zero(value, size, scale):
    assert outcome([value] * size, eps=0, scale=scale) == [0.0] * size


def test_rewards_that_differ_by_rounding_only_are_equal():
    # 0.1 + 0.2 and 0.3 as weighted sums; without a tolerance and with eps = 0 they would give +-0.7.
    assert 0.1 + 0.2 != 0.3
    assert outcome([0.1 + 0.2, 0.3], eps=0) == [0, 0]
    assert outcome(np.float32([0.1]) + np.float32([0.2, 0.2]), eps=0) == [0, 0]
    assert outcome([0.3, 0.3001], eps=0) == pytest.approx([-(0.5**0.5), 0.5**0.5])


def test_a_missing_reward_is_left_out_of_mean_and_std():
    assert outcome([1, NAN, 0, 0, 0], eps=0) == pytest.approx([1.5, 0, -0.5, -0.5, -0.5], abs=1e-15)
    assert outcome([NAN, NAN]) == [0, 0]
    assert outcome([1, NAN]) == [0, 0]  # one decided rollout has nothing to be compared with
    assert outcome([NAN, NAN, 1, 0], [0, 0, 1, 1], eps=0) == pytest.approx([0, 0, 0.5**0.5, -(0.5**0.5)])


def test_groups_do_not_touch_each_other():
    mixed = outcome([1, 5, 0, 5, 0, 9, 0], [0, 1, 0, 1, 0, 1, 0], eps=0)
    assert mixed[0::2] == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-15)
    assert mixed[1::2] == pytest.approx(outcome([5, 5, 9], eps=0), abs=1e-15)


def test_a_group_of_one_is_an_error():
    with pytest.raises(ValueError, match="first: group 1"):
        outcome([1, 0, 1], [0, 0, 1])
    with pytest.raises(ValueError, match="one rollout"):
        process([[1.0, 0.0]])


REWARD = st.one_of(st.integers(-3, 3).map(float), st.floats(-10, 10), st.just(NAN))


@settings(deadline=None)
@given(st.lists(st.lists(REWARD, min_size=2, max_size=8), min_size=1, max_size=5), st.randoms(), st.booleans())
def test_outcome_is_the_plain_formula_sums_to_zero_and_knows_no_order(groups, random, scale):
    rows = [(g, r) for g, rewards in enumerate(groups) for r in rewards]
    random.shuffle(rows)
    advantages = outcome([r for _, r in rows], [g for g, _ in rows], eps=1e-4, scale=scale)
    assert all(math.isfinite(a) for a in advantages)
    for g, rewards in enumerate(groups):
        decided = [r for r in rewards if not math.isnan(r)]
        mine = [(r, a) for (h, r), a in zip(rows, advantages, strict=True) if h == g]
        assert sum(a for _, a in mine) == pytest.approx(0, abs=1e-6)
        equal = not decided or max(decided) - min(decided) <= 4e-6 * max(map(abs, decided))
        for reward, advantage in mine:
            if math.isnan(reward) or len(set(decided)) < 2:
                assert advantage == 0
            elif not equal:
                divisor = statistics.stdev(decided) + 1e-4 if scale else 1
                expected = (reward - statistics.fmean(decided)) / divisor
                assert advantage == pytest.approx(expected, rel=1e-6, abs=1e-9)


# Process supervision


def test_process_by_hand():
    # Pool {1, 0, 0, 0}: normalised 1.5, -0.5, -0.5, -0.5; each step collects itself and what comes after.
    assert process([[1, 0, 0], [0]], eps=0) == [pytest.approx([0.5, -1, -0.5]), pytest.approx([-0.5])]
    assert process([[1, 0, 0], [0]], eps=0, step_mean=True) == [
        pytest.approx([0.5 / 3, -0.5, -0.5]),
        pytest.approx([-0.5]),
    ]
    assert process([[1, 0, 0], [0]], scale=False) == [pytest.approx([0.25, -0.5, -0.25]), pytest.approx([-0.25])]


def test_responses_with_one_step_each_are_outcome_supervision():
    assert process([[1], [0], [0], [0]]) == [[a] for a in outcome([1, 0, 0, 0])]


def test_equal_step_rewards_give_exactly_zero():
    assert process([[0.1, 0.1], [0.1], [0.1] * 5], eps=0) == [[0, 0], [0], [0] * 5]


def test_a_rollout_with_a_missing_step_reward_is_left_out_whole():
    full = process([[1, 0, 0], [0]], eps=0)
    assert process([[1, 0, 0], [7, NAN, 9], [0]], eps=0) == [full[0], [0, 0, 0], full[1]]
    assert process([[1, 0, 0], [], [0]], eps=0) == [full[0], [], full[1]]


def test_unsorted_steps_are_refused():
    with pytest.raises(ValueError, match="sort the steps"):
        process_advantages(np.zeros(3), np.array([0, 1, 0]), np.array([0, 0]))


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=2, max_size=6),
    st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=2, max_size=6),
)
def test_process_is_the_papers_double_sum(first, second):
    ours = process(first + second, [0] * len(first) + [1] * len(second), eps=1e-4)
    for group, advantages in ((first, ours[: len(first)]), (second, ours[len(first) :])):
        pool = [r for rewards in group for r in rewards]
        spread, magnitude = max(pool) - min(pool), max(map(abs, pool))
        if 0 < spread <= 4e-6 * magnitude:
            continue  # equal but for rounding
        mean, std = statistics.fmean(pool), statistics.stdev(pool) if len(pool) > 1 else 0.0
        for rewards, result in zip(group, advantages, strict=True):
            # Token form: A_t sums r~ over steps whose end index is >= t; step j ends at token 3 j + 2.
            ends = [3 * j + 2 for j in range(len(rewards))]
            expected = [
                sum((r - mean) / (std + 1e-4) for r, end in zip(rewards, ends, strict=True) if end >= t)
                for t in range(ends[-1] + 1)
            ]
            assert token_advantages(result, ends, ends[-1] + 1).tolist() == pytest.approx(expected, abs=1e-6)
        # What all first tokens of all rollouts collect is the whole pool, which sums to zero.
        assert sum(result[0] for result in advantages) == pytest.approx(0, abs=1e-6)


# Tokens


def test_tokens_belong_to_the_step_that_ends_at_or_after_them_and_eos_to_the_last():
    assert token_advantages([3, 2, 1], [1, 4, 5], 8).tolist() == [3, 3, 2, 2, 2, 1, 1, 1]
    # Steps 0 and 1 end inside the same token: it is the first one's, which collects both.
    assert token_advantages([3, 2, 1], [1, 1, 3], 4).tolist() == [3, 3, 1, 1]
    # One step, and one element for all under outcome supervision.
    assert token_advantages([3], [2], 4).tolist() == [3, 3, 3, 3]
    assert token_advantages([3], [0, 1, 2], 4).tolist() == [3, 3, 3, 3]
    with pytest.raises(ValueError, match="2 step advantages for 3 steps"):
        token_advantages([3, 2], [0, 1, 2], 4)


# Frames


def frames(rewards_by_problem, *, round_=1, step=4):
    """Rollouts, steps, rewards and scores for problem -> list of (outcome reward, step scores)."""
    rows = [
        (f"{problem}-{i}", problem, reward, scores)
        for problem, rollouts in rewards_by_problem.items()
        for i, (reward, scores) in enumerate(rollouts)
    ]
    rollouts = pl.DataFrame(
        [(rollout, problem, round_, step) for rollout, problem, *_ in rows],
        schema={"rollout_id": pl.String, "problem_id": pl.String, "round": pl.Int32, "step": pl.Int32},
        orient="row",
    )
    rewards = pl.DataFrame(
        [(rollout, problem, reward, reward) for rollout, problem, reward, _ in rows],
        schema={
            "rollout_id": pl.String,
            "problem_id": pl.String,
            "reward_rule": pl.Float32,
            "outcome_reward": pl.Float32,
        },
        orient="row",
    )
    scores = pl.DataFrame(
        [(rollout, i, score) for rollout, _, _, scores in rows for i, score in enumerate(scores)],
        schema={"rollout_id": pl.String, "step_index": pl.Int32, "score": pl.Float32},
        orient="row",
    )
    return rollouts, scores.select("rollout_id", "step_index"), rewards, scores


GROUPS = {
    "p": [(1, [1, 0, 0]), (0, [0])],
    "q": [(None, [0.5]), (1, [0.25, 0.75]), (0, [0.5, 0.5]), (0, [])],
}


def test_outcome_frame():
    rollouts, steps, rewards, _ = frames(GROUPS)
    table = compute_advantages(
        rollouts, steps, rewards.reverse(), None, GrpoConfig(supervision="outcome", advantage_eps=0)
    )
    assert table["rollout_id"].to_list() == rollouts["rollout_id"].to_list()
    assert table["step_rewards"].to_list() == [None] * 6
    unit = 0.5**0.5
    q = [0, 2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5]
    assert [a for (a,) in table["step_advantages"].to_list()] == pytest.approx([unit, -unit, *q], abs=1e-6)
    assert table["outcome_reward"].to_list() == table["reward_rule"].to_list() == [1, 0, None, 1, 0, 0]
    assert table.schema == {
        "rollout_id": pl.String,
        "problem_id": pl.String,
        "step": pl.Int32,
        "outcome_reward": pl.Float32,
        "step_rewards": pl.List(pl.Float32),
        "step_advantages": pl.List(pl.Float32),
        "reward_rule": pl.Float32,
    }


def test_process_frame_ignores_the_order_of_scores_and_undecided_outcomes():
    rollouts, steps, rewards, scores = frames(GROUPS)
    table = compute_advantages(
        rollouts, steps, rewards, scores.sample(fraction=1, shuffle=True, seed=1), GrpoConfig(advantage_eps=0)
    )
    assert table["step_rewards"].to_list() == [[1, 0, 0], [0], [0.5], [0.25, 0.75], [0.5, 0.5], None]
    # q: pool {.5, .25, .75, .5, .5}, mean .5, std sqrt(.125 / 4).
    unit = 0.25 / (0.125 / 4) ** 0.5
    expected = [[0.5, -1, -0.5], [-0.5], [0], [0, unit], [0, 0], [0]]
    for got, want in zip(table["step_advantages"].to_list(), expected, strict=True):
        assert got == pytest.approx(want, abs=1e-6)


def test_outcome_weight_adds_the_outcome_advantage_to_every_step():
    rollouts, steps, rewards, scores = frames(GROUPS)
    plain = compute_advantages(rollouts, steps, rewards, scores, GrpoConfig())
    mixed = compute_advantages(rollouts, steps, rewards, scores, GrpoConfig(outcome_weight=0.3))
    outcomes = compute_advantages(rollouts, steps, rewards, scores, GrpoConfig(supervision="outcome"))
    for a, b, (o,) in zip(*(t["step_advantages"].to_list() for t in (plain, mixed, outcomes)), strict=True):
        assert b == pytest.approx([x + 0.3 * o for x in a], abs=1e-6)


def test_a_rollout_that_was_not_scored_whole_is_left_out():
    rollouts, steps, rewards, scores = frames({"p": [(1, [1, 0, 0]), (0, [0]), (0, [0.2, 0.9])]})
    table = compute_advantages(rollouts, steps, rewards, scores[:-1], GrpoConfig(advantage_eps=0))
    assert table["step_rewards"].to_list() == [[1, 0, 0], [0], None]
    assert table["step_advantages"].to_list()[2] == [0, 0]
    assert table["step_advantages"].to_list()[0] == pytest.approx([0.5, -1, -0.5])


def test_groups_are_keyed_by_problem_round_and_step():
    rollouts, steps, rewards, scores = frames({"p": [(1, [1]), (0, [0]), (1, [1]), (1, [1])]})
    config = GrpoConfig(supervision="outcome", advantage_eps=0)
    for column in ("round", "step"):
        split = rollouts.with_columns(pl.Series(column, [1, 1, 2, 2], dtype=pl.Int32))
        table = compute_advantages(split, steps, rewards, scores, config)
        assert [a for (a,) in table["step_advantages"].to_list()] == pytest.approx([0.5**0.5, -(0.5**0.5), 0, 0])
    # No step outside training: null is a value of the key like any other.
    outside = rollouts.with_columns(step=pl.lit(None, pl.Int32))
    table = compute_advantages(outside, steps, rewards, scores, config)
    assert [a for (a,) in table["step_advantages"].to_list()] == pytest.approx([0.5, -1.5, 0.5, 0.5])


def test_errors_name_what_is_missing():
    rollouts, steps, rewards, scores = frames({"p": [(1, [1]), (0, [0])], "lonely": [(1, [1])]})
    with pytest.raises(UserError, match="problem_id lonely, round 1, step 4"):
        compute_advantages(rollouts, steps, rewards, scores, GrpoConfig())
    with pytest.raises(UserError, match="1 rollouts have no row in rewards, first: p-1"):
        compute_advantages(rollouts[:2], steps, rewards[:1], scores, GrpoConfig())
    with pytest.raises(UserError, match="needs step_scores"):
        compute_advantages(rollouts[:2], steps, rewards, None, GrpoConfig())
