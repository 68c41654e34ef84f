import math

import polars as pl
import pytest

from grpo_pipeline.evaluation.outcome import evaluate_outcome_model
from grpo_pipeline.models.aggregate import strengths

ROWS = [
    # problem, correct, answer, score
    ("p", True, "1", 0.9),
    ("p", False, "2", 0.6),
    ("p", False, "2", 0.5),
    ("q", True, "3", 0.2),
    ("q", False, "4", 0.4),
    ("q", True, "3", 0.3),
    ("r", False, "5", 0.1),
    ("r", False, "6", 0.7),
    ("r", False, "6", 0.2),
]


def frames(rows=ROWS, late=()):
    ids = [f"r{i}" for i in range(len(rows))]
    problems, correct, answers, scores = zip(*rows, strict=True)
    verdicts = ["timeout" if i in late else "correct" if good else "wrong" for i, good in enumerate(correct)]
    checked = pl.DataFrame({"rollout_id": ids, "problem_id": problems, "answer": answers, "verdict": verdicts})
    scored = pl.DataFrame(
        {"rollout_id": ids, "problem_id": problems, "score": scores, "reward_model_id": "m"},
        schema_overrides={"score": pl.Float32},
    )
    return scored, checked


def figures(kind="orm", **how):
    frame = evaluate_outcome_model(*frames(**how), kind=kind, round=2)
    assert frame["subject"].unique().to_list() == [kind]
    return {row["metric"]: row for row in frame.iter_rows(named=True)}


def test_an_orm_by_hand():
    got = figures()
    # Correct: .9 .2 .3; wrong: .6 .5 .4 .1 .7 .2. Wins of .9: 6; of .3: .1, .2; of .2: .1, and half of .2.
    assert got["solution_auc"]["value"] == pytest.approx((6 + 2 + 1.5) / 18)
    # p: 2 of 2 pairs in order, q: 0 of 2; r has no pair.
    assert (got["pair_accuracy"]["value"], got["pair_accuracy"]["n"]) == (0.5, 2)
    assert got["bon3"]["value"] == pytest.approx(1 / 3)  # p's best is right, q's and r's are not
    # Votes by score: p 0.9 : 1.1 for the wrong 2; q 0.5 : 0.4 for the right 3; r has no right answer.
    assert got["weighted3"]["value"] == pytest.approx(1 / 3)
    assert got["solution_accuracy"]["value"] == pytest.approx(4 / 9)  # .9, .4, .1, .2 are on their side of 0.5
    squares = [0.1, 0.6, 0.5, 0.8, 0.4, 0.7, 0.1, 0.7, 0.2]
    assert got["brier"]["value"] == pytest.approx(sum(s**2 for s in squares) / 9, abs=1e-6)


def test_pairwise_rewards_are_no_probabilities_and_may_be_negative():
    rows = [(p, good, answer, math.log(score) - 3) for p, good, answer, score in ROWS]
    got = figures("pairwise", rows=rows)
    assert not {"ece", "brier", "solution_accuracy"} & set(got)
    # Strengths are exp(reward), here in the ratio of ROWS' scores: the same order and the same votes.
    for name in ("solution_auc", "pair_accuracy", "bon3", "weighted3"):
        assert got[name]["value"] == pytest.approx(figures()[name]["value"])


def test_strengths_are_relative_to_the_best_of_each_problem():
    scored, _ = frames([("p", True, "1", 1000.0), ("p", False, "2", 1000.0 - math.log(4)), ("q", True, "3", -50.0)])
    assert strengths(scored)["score"].to_list() == pytest.approx([1.0, 0.25, 1.0], abs=1e-4)


def test_undecided_solutions_are_left_out_and_missing_scores_are_an_error():
    assert figures(late={0})["solution_auc"]["n"] == 8
    scored, checked = frames()
    with pytest.raises(ValueError, match="1 of 9 decided solutions have no score"):
        evaluate_outcome_model(scored.head(8), checked, kind="orm", round=0)
