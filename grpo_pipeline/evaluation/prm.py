"""How good a process reward model is: against true step judgements, and as a judge of solutions (METHOD 7)."""

from typing import get_args

import numpy as np
import polars as pl

from grpo_pipeline.evaluation.binary import brier, expected_calibration_error, roc_auc, spearman
from grpo_pipeline.evaluation.first_error import FIXED, NO_ERROR, Threshold, first_error_figures, predict_first_error
from grpo_pipeline.evaluation.rows import Figure, evaluation_rows, mean_figure
from grpo_pipeline.evaluation.votes import expected_best_of, vote_key, weighted_vote
from grpo_pipeline.models.aggregate import Aggregate, score_solutions


def evaluate_prm(
    step_scores: pl.DataFrame,
    checked: pl.DataFrame | None = None,
    *,
    truth: pl.DataFrame | None,
    round: int,
    split: str = "eval",
    threshold: Threshold = FIXED,
) -> pl.DataFrame:
    """Figures of one PRM on one split.

    Args:
        step_scores: `step_scores` columns of one PRM.
        checked: `checked` columns of the same rollouts, for figures of whole solutions.
        truth: rollout_id, step_index, is_good (bool): whether the step is truly right. Steps without truth are
            left out of step figures; None or empty where nothing is known gives none of them.
        round: The round whose PRM it is.
        split: Name of the data measured on.
        threshold: Steps below it are called wrong; must not have been tuned on `split`.

    Returns:
        `evaluations` rows, subject "prm". Of steps: step_accuracy, auc, ece, brier, threshold. Of solutions:
        first_error_error, first_error_correct, first_error_f1, min_at_last_share. With `checked`, for each of
        min, prod, last and mean: solution_auc_*, bon{k}_*, weighted{k}_* (k: the fewest decided rollouts of a
        problem, from 2), length_bias_*.

    Raises:
        ValueError: The threshold was tuned on this split, scores of several PRMs, or a truth of other rollouts.
    """
    if threshold.split == split:
        raise ValueError(f"the threshold was tuned on {split!r}, so it cannot be measured there; use another split")
    ids = step_scores["prm_id"].unique().to_list()
    if len(ids) != 1:
        raise ValueError(f"scores of {len(ids)} PRMs, expected one")
    figures = [_min_at_last(step_scores)]
    if truth is not None and truth.height:
        figures += step_figures(step_scores, truth, threshold)
    if checked is not None:
        for how in get_args(Aggregate):
            figures += solution_figures(step_scores, checked, how)
    return evaluation_rows(figures, round=round, subject="prm", subject_id=ids[0])


def step_figures(step_scores: pl.DataFrame, truth: pl.DataFrame, threshold: Threshold) -> list[Figure]:
    """Figures against true step judgements; see `evaluate_prm`."""
    known = step_scores.join(
        truth.select("rollout_id", "step_index", "is_good"), on=["rollout_id", "step_index"], validate="1:1"
    ).sort("rollout_id", "step_index")
    if not known.height:
        raise ValueError("no scored step has a known truth; do both frames come from the same rollouts?")
    good, scores, n = known["is_good"].to_numpy(), known["score"].cast(pl.Float64).to_numpy(), known.height
    solutions = known.group_by("rollout_id", maintain_order=True).agg("score", "is_good")
    predicted = predict_first_error(solutions["score"].to_list(), threshold.value)
    first = first_error_figures(predicted, first_wrong_steps(solutions["is_good"].to_list()))
    return [
        Figure("step_accuracy", float(np.mean((scores >= threshold.value) == good)), n),
        Figure("auc", roc_auc(good, scores), n),
        Figure("ece", expected_calibration_error(good, scores), n),
        Figure("brier", brier(good, scores), n),
        Figure("threshold", threshold.value, n),
        Figure("first_error_error", first.error, first.n_error),
        Figure("first_error_correct", first.correct, first.n_correct),
        Figure("first_error_f1", first.f1, first.n_error + first.n_correct),
    ]


def solution_figures(step_scores: pl.DataFrame, checked: pl.DataFrame, how: Aggregate) -> list[Figure]:
    """Figures of solution scores against the checker's verdicts, for one way to aggregate.

    length_bias is the rank correlation of a solution's score with its number of steps among solutions of the
    same verdict (weighted by size): what length alone does to a score. Undecided solutions are left out.
    """
    lengths = step_scores.group_by("rollout_id").agg(pl.len().alias("n_steps"))
    frame = (
        checked.filter(pl.col("verdict") != "timeout")
        .select("rollout_id", "problem_id", "answer", (pl.col("verdict") == "correct").alias("correct"))
        .join(score_solutions(step_scores, how), on="rollout_id", validate="1:1")
        .join(lengths, on="rollout_id")
        .sort("problem_id", "rollout_id")
    )
    figures = [
        Figure(f"solution_auc_{how}", roc_auc(frame["correct"].to_numpy(), frame["score"].to_numpy()), frame.height)
    ]
    groups = list(frame.group_by("problem_id", maintain_order=True).agg("answer", "correct", "score").iter_rows())
    k = min((len(correct) for _, _, correct, _ in groups), default=0)
    if k > 1:
        best = [expected_best_of(scores, correct, k) for _, _, correct, scores in groups]
        figures.append(mean_figure(f"bon{k}_{how}", best))
        # Imported solutions may have a verdict and no answer, so that there is nothing to vote on.
        if frame["answer"].is_not_null().any():
            voted = [
                weighted_vote([None if a is None else vote_key(a) for a in answers], scores, correct)
                for _, answers, correct, scores in groups
            ]
            figures.append(mean_figure(f"weighted{k}_{how}", voted))
    return [*figures, _length_bias(frame, how)]


def first_wrong_steps(solutions: list[list[bool]]) -> list[int]:
    """Index of the first wrong step of each solution, -1 where all are good."""
    return [good.index(False) if False in good else NO_ERROR for good in solutions]


def _length_bias(frame: pl.DataFrame, how: str) -> Figure:
    total, weight = 0.0, 0
    for verdict in (True, False):
        part = frame.filter(pl.col("correct") == verdict)
        rho = spearman(part["n_steps"].to_numpy(), part["score"].to_numpy())
        if rho is not None:
            total, weight = total + rho * part.height, weight + part.height
    return Figure(f"length_bias_{how}", total / weight if weight else None, weight)


def _min_at_last(step_scores: pl.DataFrame) -> Figure:
    """Share of solutions of two or more steps whose lowest score is the last step's alone.

    A high share is a known sign of a model that judges outcomes rather than steps (Zhang et al. 2025).
    """
    at_last = (
        step_scores.sort("rollout_id", "step_index")
        .group_by("rollout_id")
        .agg(pl.len().alias("n"), (pl.col("score").arg_min() == pl.len() - 1).alias("at_last"))
        .filter(pl.col("n") > 1)["at_last"]
    )
    return Figure("min_at_last_share", float(at_last.sum()) / len(at_last) if len(at_last) else None, len(at_last))
