import polars as pl
import pytest

from grpo_pipeline.evaluation.first_error import FIXED, Threshold
from grpo_pipeline.evaluation.prm import evaluate_prm, first_wrong_steps
from grpo_pipeline.schemas import TABLES


def make_scores(**scores):
    rows = [
        (rollout_id, rollout_id[0], index, score, "prm-1")
        for rollout_id, row in scores.items()
        for index, score in enumerate(row)
    ]
    names = {"rollout_id": pl.String, "problem_id": pl.String, "step_index": pl.Int32, "score": pl.Float32}
    return pl.DataFrame(rows, schema=names | {"prm_id": pl.String}, orient="row")


def make_truth(**good):
    rows = [(rollout_id, index, value) for rollout_id, row in good.items() for index, value in enumerate(row)]
    names = {"rollout_id": pl.String, "step_index": pl.Int32, "is_good": pl.Boolean}
    return pl.DataFrame(rows, schema=names, orient="row")


SCORES = make_scores(p0=[0.75, 0.25], p1=[0.875, 0.5, 0.625], q0=[0.25], q1=[0.5, 0.5])
TRUTH = make_truth(p0=[True, False], p1=[True, True, True], q0=[True], q1=[False, False])
CHECKED = pl.DataFrame(
    {
        "rollout_id": ["p0", "p1", "q0", "q1"],
        "problem_id": ["p", "p", "q", "q"],
        "answer": ["1", "2", "3", None],
        "verdict": ["wrong", "correct", "correct", "no_answer"],
    }
)


def figures(*args, **kwargs):
    frame = evaluate_prm(*args, **kwargs)
    assert frame.columns == TABLES["evaluations"].schema.names
    assert frame.select("round", "subject", "subject_id").unique().rows() == [(1, "prm", "prm-1")]
    return {row["metric"]: (row["value"], row["n"]) for row in frame.to_dicts()}


def test_step_figures_by_hand():
    got = figures(SCORES, truth=TRUTH, round=1)
    # Right: p0 both, p1 all three, q0 is not, q1 neither.
    assert got["step_accuracy"] == (pytest.approx(5 / 8), 8)
    # Good: .75 .875 .5 .625 .25; bad: .25 .5 .5. Of 15 pairs 10 are in order and 3 tie.
    assert got["auc"] == (pytest.approx((3 * 3 + (1 + 0.5 * 2) + 0.5) / 15), 8)
    # (good) .0625 .015625 .25 .140625 .5625, (bad) .0625 .25 .25
    assert got["brier"] == (pytest.approx(1.59375 / 8), 8)
    # First wrong: p0 1 (found), q1 0 (not found); p1 none (right), q0 none (0.25 is called wrong).
    assert got["first_error_error"] == (0.5, 2)
    assert got["first_error_correct"] == (0.5, 2)
    assert got["first_error_f1"] == (0.5, 4)
    assert got["threshold"] == (0.5, 8)
    # Of p0, p1, q1 (q0 has one step) only p0 has its lowest score at the end alone.
    assert got["min_at_last_share"] == (pytest.approx(1 / 3), 3)


def test_solution_figures_by_hand_side_by_side():
    got = figures(SCORES, CHECKED, truth=None, round=1)
    assert "auc" not in got
    # min: p0 .25 W, p1 .5 C, q0 .25 C, q1 .5 W.
    assert got["solution_auc_min"] == (pytest.approx((1 + 0.5 + 0.5 + 0) / 4), 4)
    assert got["bon2_min"] == (0.5, 2)  # p right, q wrong
    # last: p0 .25 W, p1 .625 C, q0 .25 C, q1 .5 W.
    assert got["solution_auc_last"] == (pytest.approx((1 + 1 + 0.5 + 0) / 4), 4)
    # mean: p0 .5 W, p1 2/3 C; q0 .25 C, q1 .5 W.
    assert got["solution_auc_mean"] == (pytest.approx((1 + 1 + 0 + 0) / 4), 4)
    # q1 gives no answer, so that q0's is the only vote.
    assert got["weighted2_min"] == (1.0, 2)
    # prod: p0 .1875 W, p1 .2734 C, q0 .25 C, q1 .25 W.
    assert got["solution_auc_prod"] == (pytest.approx((1 + 1 + 1 + 0.5) / 4), 4)
    # Correct: 3 steps .5, 1 step .25; wrong: both of 2 steps, which tells nothing.
    assert got["length_bias_min"] == (pytest.approx(1.0), 2)


def test_undecided_solutions_have_no_part():
    checked = CHECKED.with_columns(
        verdict=pl.when(pl.col("rollout_id") == "q1").then(pl.lit("timeout")).otherwise("verdict")
    )
    got = figures(SCORES, checked, truth=None, round=1)
    assert got["solution_auc_min"] == (pytest.approx((1 + 0.5) / 2), 3)
    assert not [metric for metric in got if metric.startswith(("bon", "weighted"))]


def test_steps_without_truth_are_left_out():
    got = figures(SCORES, truth=TRUTH.filter(pl.col("rollout_id") == "p0"), round=1)
    assert got["step_accuracy"] == (1.0, 2)
    assert got["first_error_f1"] == (None, 1)


def test_one_class_has_no_auc():
    got = figures(SCORES, truth=TRUTH.filter("is_good"), round=1)
    assert got["auc"] == (None, 5)


def test_a_threshold_is_not_measured_where_it_was_tuned():
    with pytest.raises(ValueError, match="tuned on 'eval'"):
        evaluate_prm(SCORES, truth=TRUTH, round=1, threshold=Threshold(0.3, "eval"))
    got = figures(SCORES, truth=TRUTH, round=1, threshold=Threshold(0.25, "train"))
    assert got["threshold"] == (0.25, 8)
    assert got["first_error_correct"] == (1.0, 2)
    assert FIXED.value == 0.5


def test_frames_that_do_not_belong_together():
    with pytest.raises(ValueError, match="same rollouts"):
        evaluate_prm(SCORES, truth=make_truth(x=[True]), round=1)
    with pytest.raises(ValueError, match="2 PRMs"):
        evaluate_prm(pl.concat([SCORES, SCORES.with_columns(prm_id=pl.lit("other"))]), truth=TRUTH, round=1)


def test_first_wrong_steps():
    assert first_wrong_steps([[True, False, True], [True], [False]]) == [1, -1, 0]
