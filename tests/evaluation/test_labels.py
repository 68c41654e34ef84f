import polars as pl
import pytest

from grpo_pipeline.evaluation.labels import label_quality
from grpo_pipeline.evaluation.oracle import judge_rollouts
from grpo_pipeline.problems.synthetic import generate_problems
from grpo_pipeline.schemas import TABLES

LABELS = pl.DataFrame(
    [
        ("a", 0, 0.75, 1, "sampled"),
        ("a", 1, 0.25, 1, "sampled"),
        ("a", 2, 0.0, 0, "outcome"),
        ("b", 0, 0.0, 0, "sampled"),
        ("b", 1, None, None, "sampled"),
    ],
    schema={
        "rollout_id": pl.String,
        "step_index": pl.Int32,
        "soft": pl.Float32,
        "hard": pl.Int32,
        "label_source": pl.String,
    },
    orient="row",
)
TRUTH = pl.DataFrame(
    {
        "rollout_id": ["a", "a", "a", "b", "b"],
        "step_index": pl.Series([0, 1, 2, 0, 1], dtype=pl.Int32),
        "is_good": [True, False, False, True, True],
    }
)


def test_every_figure_by_hand():
    frame = label_quality(LABELS, TRUTH, round=2, completer_id="c")
    assert frame.columns == TABLES["evaluations"].schema.names
    assert frame.select("round", "subject", "subject_id").unique().rows() == [(2, "labels", "c")]
    got = {row["metric"]: (row["value"], row["n"]) for row in frame.to_dicts()}
    assert got == {
        "labelled_share": (0.8, 5),
        "hard_label_accuracy": (0.5, 4),
        "hard_label_accuracy_sampled": (pytest.approx(1 / 3), 3),
        "hard_label_accuracy_outcome": (1.0, 1),
        "hard_false_zero": (0.5, 2),
        "hard_false_one": (0.5, 2),
        "soft_label_brier": (pytest.approx((0.0625 + 0.0625 + 0 + 1) / 4), 4),
        "soft_label_auc": (pytest.approx((1 + 1 + 0 + 0.5) / 4), 4),
        "soft_label_bias": (pytest.approx((-0.25 + 0.25 + 0 - 1) / 4), 4),
    }


def test_no_known_truth():
    with pytest.raises(ValueError, match="no label has a known truth"):
        label_quality(LABELS, TRUTH.clear(), round=0, completer_id="c")


def test_oracle_judges_generated_problems_and_leaves_others_out():
    generated = generate_problems(2, seed=1, min_steps=2, max_steps=2)
    problems = pl.DataFrame(generated).select("source", "gold_solution", "meta", problem_id=pl.Series(["p", "q"]))
    first, second = problems["problem_id"]
    lines = problems["gold_solution"][0].split("\n")
    texts = [f"{line}\n" for line in lines[:-1]] + [lines[-1]]
    wrong = [texts[0], "1 + 1 = 3\n", *texts[2:]]
    steps = pl.DataFrame(
        [
            (rollout_id, problem_id, index, text)
            for rollout_id, problem_id, solution in (("w", first, wrong), ("r", first, texts), ("x", "other", ["hm"]))
            for index, text in enumerate(solution)
        ],
        schema={"rollout_id": pl.String, "problem_id": pl.String, "step_index": pl.Int32, "text": pl.String},
        orient="row",
    )
    others = problems.tail(1).with_columns(
        problem_id=pl.lit("other"), source=pl.lit("gsm8k"), meta=pl.lit(None, pl.String)
    )
    judged = judge_rollouts(pl.concat([problems, others]), steps.reverse())
    assert judged.filter(rollout_id="r")["is_good"].to_list() == [True] * len(texts)
    assert judged.filter(rollout_id="w")["is_good"].to_list() == [True] + [False] * (len(texts) - 1)
    assert judged.filter(rollout_id="w")["step_index"].to_list() == list(range(len(texts)))
    assert "x" not in judged["rollout_id"]
    assert second not in judged["problem_id"]
    assert judged.schema["step_index"] == pl.Int32
