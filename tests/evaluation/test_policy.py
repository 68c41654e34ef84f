import math
import time

import polars as pl
import pytest

from grpo_pipeline.evaluation.policy import evaluate_policy, several_k
from grpo_pipeline.schemas import TABLES

PROBLEMS = pl.DataFrame({"problem_id": ["p", "q", "t"], "split": ["eval", "eval", "train"]})


def make(spec, *, policy="pol", finish=None):
    """`spec`: problem -> list of (answer, verdict); rollout ids are problem and group index."""
    rows = [(f"{p}{i}", p, i, a, v) for p, samples in spec.items() for i, (a, v) in enumerate(samples)]
    ids, problems, indices, answers, verdicts = (list(column) for column in zip(*rows, strict=True))
    rollouts = pl.DataFrame(
        {
            "rollout_id": ids,
            "problem_id": problems,
            "group_index": pl.Series(indices, dtype=pl.Int32),
            "policy_id": policy,
            "token_ids": pl.Series([[1] * (i + 1) for i in indices], dtype=pl.List(pl.Int32)),
            "finish_reason": [(finish or {}).get(i, "stop") for i in ids],
        }
    )
    checked = pl.DataFrame(
        {"rollout_id": ids, "problem_id": problems, "answer": answers, "verdict": verdicts},
        schema_overrides={"answer": pl.String},
    )
    return rollouts, checked


C, W, N, T = "correct", "wrong", "no_answer", "timeout"
SPEC = {
    "p": [("5", C), ("5.0", C), ("7", W), (None, N)],
    "q": [("1", W), ("2", C), ("1", W), ("3", T)],
}
SCORES = pl.DataFrame(
    {"rollout_id": ["p0", "p1", "p2", "p3", "q0", "q1", "q2", "q3"], "score": [0.2, 0.2, 0.9, 0.8, 0.1, 0.9, 0.2, 1.0]}
)


def figures(*args, **kwargs):
    frame = evaluate_policy(*args, **kwargs)
    assert frame.columns == TABLES["evaluations"].schema.names
    return {row["metric"]: row for row in frame.to_dicts()}


def test_every_figure_by_hand():
    rollouts, checked = make(SPEC, finish={"p3": "length"})
    got = figures(PROBLEMS, rollouts, checked, SCORES, k=4, round=3)
    # p: 2 of 4 correct; q: 1 of the 3 decided.
    a, b = 1 / 2, 1 / 3
    assert got["accuracy"]["value"] == pytest.approx((a + b) / 2)
    assert got["accuracy"]["standard_error"] == pytest.approx(abs(a - b) / 2)  # sd of two values / sqrt 2
    assert got["accuracy"]["n"] == 2
    for metric in ("pass1", "maj1", "bon1"):
        assert got[metric]["value"] == pytest.approx((a + b) / 2)
    # pass@2: p 1 - C(2,2)/C(4,2) = 5/6, q 1 - C(2,2)/C(3,2) = 2/3.
    assert got["pass2"]["value"] == pytest.approx((5 / 6 + 2 / 3) / 2)
    assert got["pass4"]["value"] == 1.0  # q with the three that are there
    # maj@4: "5" and "5.0" outvote "7" in p; "1" wins in q.
    assert got["maj4"]["value"] == pytest.approx(0.5)
    # Best of 4: the wrong p2 (0.9), the right q1 (0.9); the undecided q3 (1.0) is left out.
    assert got["bon4"]["value"] == pytest.approx(0.5)
    # Weighted: p 0.4 for "5" against 0.9; q 0.9 for "2" against 0.3.
    assert got["weighted4"]["value"] == pytest.approx(0.5)
    assert got["mean_tokens"]["value"] == 2.5
    assert got["truncated_share"]["value"] == pytest.approx(1 / 8)
    assert got["undecided_share"]["value"] == pytest.approx(1 / 8)
    assert {(row["round"], row["subject"], row["subject_id"]) for row in got.values()} == {(3, "policy", "pol")}
    assert set(got) == {
        "accuracy", "weighted4", "mean_tokens", "truncated_share", "undecided_share",
        *(f"{name}{k}" for name in ("pass", "maj", "bon") for k in (1, 2, 4)),
    }  # fmt: skip


def test_without_scores_there_are_no_figures_of_a_reward_model():
    got = figures(PROBLEMS, *make(SPEC), k=4, round=0)
    assert not [metric for metric in got if metric.startswith(("bon", "weighted"))]


def test_greedy_leaves_undecided_out():
    greedy = pl.DataFrame({"rollout_id": ["g", "h"], "problem_id": ["p", "q"], "verdict": [C, T]})
    got = figures(PROBLEMS, *make(SPEC), greedy=greedy, k=2, round=0)["greedy"]
    assert (got["value"], got["standard_error"], got["n"]) == (1.0, None, 1)
    with pytest.raises(ValueError, match="several rollouts of a problem"):
        evaluate_policy(PROBLEMS, *make(SPEC), greedy=pl.concat([greedy, greedy]), k=2, round=0)


def test_weighted_vote_takes_the_first_k_by_group_index():
    rollouts, checked = make(SPEC)
    got = figures(PROBLEMS, rollouts.reverse(), checked, SCORES, k=2, round=0)
    # p0 and p1 are right; q0 (0.1, wrong) against q1 (0.9, right).
    assert got["weighted2"]["value"] == 1.0


def test_a_problem_without_a_decided_rollout_is_left_out():
    got = figures(PROBLEMS, *make({"p": [("5", C), ("7", W)], "q": [("1", T), (None, T)]}), k=2, round=0)
    assert (got["accuracy"]["value"], got["accuracy"]["n"]) == (0.5, 1)
    assert (got["pass2"]["value"], got["pass2"]["n"]) == (1.0, 1)
    assert got["undecided_share"]["value"] == 0.5


def test_nothing_decided_is_undefined_not_zero():
    got = figures(PROBLEMS, *make({"p": [("5", T)]}), k=1, round=0)
    assert (got["accuracy"]["value"], got["accuracy"]["n"]) == (None, 0)
    assert got["maj1"]["value"] is got["pass1"]["value"] is None


def test_standard_error_is_clustered_by_problem():
    # 100 problems, half of them always right: a naive error over 800 rollouts would be sqrt(8) times too small.
    problems = pl.DataFrame({"problem_id": [f"p{i}" for i in range(100)], "split": "eval"})
    spec = {f"p{i}": [("1", C if i % 2 else W)] * 8 for i in range(100)}
    got = figures(problems, *make(spec), k=8, round=0)["accuracy"]
    assert got["standard_error"] == pytest.approx(math.sqrt(0.25 * 100 / 99) / 10)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"t": [("1", C)]}, "1 rollouts are not of held-out problems; first: problem t"),
        ({"unknown": [("1", C)]}, "not of held-out problems"),
    ],
)
def test_only_held_out_problems(spec, message):
    with pytest.raises(ValueError, match=message):
        evaluate_policy(PROBLEMS, *make(spec), k=1, round=0)


def test_incomplete_input_is_refused():
    rollouts, checked = make(SPEC)
    with pytest.raises(ValueError, match="1 of 8 rollouts have no verdict"):
        evaluate_policy(PROBLEMS, rollouts, checked.head(7), k=1, round=0)
    with pytest.raises(ValueError, match="2 of 8 rollouts have no score"):
        evaluate_policy(PROBLEMS, rollouts, checked, SCORES.head(6), k=1, round=0)
    with pytest.raises(ValueError, match="k is 5, expected 1 <= k <= 4"):
        evaluate_policy(PROBLEMS, rollouts, checked, k=5, round=0)
    other = rollouts.with_columns(policy_id=pl.col("rollout_id"))
    with pytest.raises(ValueError, match="8 policies"):
        evaluate_policy(PROBLEMS, other, checked, k=1, round=0)


def test_several_k():
    assert several_k(1) == [1]
    assert several_k(8) == [1, 2, 4, 8]
    assert several_k(10) == [1, 2, 4, 8, 10]


def test_sixteen_hundred_rollouts_take_well_under_a_second():
    problems = pl.DataFrame({"problem_id": [f"p{i}" for i in range(200)], "split": "eval"})
    spec = {
        f"p{i}": [(str((i * j) % (2 + i % 6)), C if (i * j) % (2 + i % 6) == 0 else W) for j in range(8)]
        for i in range(200)
    }
    rollouts, checked = make(spec)
    scores = rollouts.select("rollout_id", score=pl.int_range(pl.len()) % 97 / 97)
    started = time.process_time()
    evaluate_policy(problems, rollouts, checked, scores, k=8, round=0)
    assert time.process_time() - started < 1.0
