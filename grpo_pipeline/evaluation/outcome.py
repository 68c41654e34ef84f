"""How good a reward model of whole solutions is: an ORM or a pairwise model, against the checker's verdicts."""

from typing import Literal

import numpy as np
import polars as pl

from grpo_pipeline.evaluation.binary import brier, expected_calibration_error, roc_auc
from grpo_pipeline.evaluation.rows import Figure, evaluation_rows, mean_figure
from grpo_pipeline.evaluation.votes import expected_best_of, vote_key, weighted_vote
from grpo_pipeline.models.aggregate import strengths


def evaluate_outcome_model(
    solution_scores: pl.DataFrame,
    checked: pl.DataFrame,
    *,
    kind: Literal["prm", "orm", "pairwise"],
    round: int,
) -> pl.DataFrame:
    """Figures of one model on one set of solutions. Solutions whose check ran out of time are left out.

    Args:
        solution_scores: `solution_scores` columns of one model.
        checked: `checked` columns of the same rollouts.
        kind: orm or pairwise.
        round: The round whose model it is.

    Returns:
        `evaluations` rows, the subject being the kind: solution_auc (over all solutions), pair_accuracy (share of
        pairs of a correct and a wrong solution of one problem that are put in the right order, half for equal
        scores; the mean of the problems that have both), bon{k} and weighted{k} (k: the fewest decided solutions of
        a problem, from 2); for an ORM, whose scores are probabilities, solution_accuracy (at 0.5), ece and brier.

    Raises:
        ValueError: Scores of several models, or a decided solution without a score.
    """
    ids = solution_scores["reward_model_id"].unique().to_list()
    if len(ids) != 1:
        raise ValueError(f"scores of {len(ids)} reward models, expected one")
    weights = strengths(solution_scores).rename({"score": "weight"})
    frame = (
        checked.filter(pl.col("verdict") != "timeout")
        .select("rollout_id", "problem_id", "answer", (pl.col("verdict") == "correct").alias("correct"))
        .join(solution_scores.select("rollout_id", "score"), on="rollout_id", how="left", validate="1:1")
        .join(weights, on="rollout_id", how="left")
        .sort("problem_id", "rollout_id")
    )
    if missing := frame["score"].null_count():
        raise ValueError(f"{missing} of {frame.height} decided solutions have no score")
    correct, scores = frame["correct"].to_numpy(), frame["score"].cast(pl.Float64).to_numpy()
    figures = [Figure("solution_auc", roc_auc(correct, scores), frame.height)]
    if kind == "orm" and frame.height:
        figures += [
            Figure("solution_accuracy", float(np.mean((scores >= 0.5) == correct)), frame.height),
            Figure("ece", expected_calibration_error(correct, scores), frame.height),
            Figure("brier", brier(correct, scores), frame.height),
        ]
    groups = list(
        frame.group_by("problem_id", maintain_order=True)
        .agg("answer", "correct", "score", pl.col("score" if kind == "orm" else "weight").alias("_weight"))
        .iter_rows()
    )
    ordered = [roc_auc(np.array(good), np.array(given)) for _, _, good, given, _ in groups]
    figures.append(mean_figure("pair_accuracy", [value for value in ordered if value is not None]))
    k = min((len(good) for _, _, good, _, _ in groups), default=0)
    if k > 1:
        best = [expected_best_of(given, good, k) for _, _, good, given, _ in groups]
        voted = [
            weighted_vote([None if a is None else vote_key(a) for a in answers], weight, good)
            for _, answers, good, _, weight in groups
        ]
        figures += [mean_figure(f"bon{k}", best), mean_figure(f"weighted{k}", voted)]
    return evaluation_rows(figures, round=round, subject=kind, subject_id=ids[0])
