"""A PRM measured on labelled solutions of others and on own sampled ones, each set under its own name.

ProcessBench's F1 (arXiv 2412.06559), PRM800K's accuracy and AUC of single steps, best-of-n and votes of sampled
solutions, and two signs of a PRM that judges something else: the lowest score at the last step, and length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from grpo_pipeline.errors import UserError
from grpo_pipeline.evaluation.first_error import Threshold, choose_threshold, processbench_f1
from grpo_pipeline.evaluation.prm import evaluate_prm, first_wrong_steps
from grpo_pipeline.evaluation.rows import Figure, evaluation_rows

OF_STEPS = ("step_accuracy", "auc", "ece", "brier", "threshold")
"""Figures of sets whose rows are single judged steps rather than solutions."""


@dataclass(frozen=True)
class LabelledSet:
    """Solutions with a PRM's scores and what is known of them.

    Attributes:
        name: Stands before the figures' names.
        scores: `step_scores` columns; rollout_id names the solution.
        truth: rollout_id, step_index, is_good; the judged steps.
        whole: Whether rows are whole solutions, judged up to their first wrong step at least.
        checked: `checked` columns, where the solutions' verdicts are known.
        first_error: Whether the set counts towards the mean F1 (ProcessBench's subsets).
    """

    name: str
    scores: pl.DataFrame
    truth: pl.DataFrame
    whole: bool
    checked: pl.DataFrame | None = None
    first_error: bool = False


def evaluate_sets(
    sets: Sequence[LabelledSet], *, threshold: float = 0.5, tune_on: str | None = None, prm_id: str
) -> pl.DataFrame:
    """Figures of one PRM on all sets, named SET/FIGURE (see `evaluation.prm.evaluate_prm`).

    ``processbench/mean_f1`` is the mean of the subsets' ``first_error_f1``. With `tune_on`, further figures use
    the threshold with the highest F1 on that set: ``SET/tuned_f1``, and ``SET/tuned_here_f1`` on the set itself,
    which is then no held-out figure; ``processbench/tuned_threshold`` says what was chosen.

    Raises:
        UserError: Two sets of one name, or `tune_on` names no set of whole solutions with a known truth.
    """
    names = [one.name for one in sets]
    if len(set(names)) != len(names):
        raise UserError(f"two sets have the same name ({', '.join(names)}); rename one of the files")
    frames, f1s = [], []
    for one in sets:
        frame = evaluate_prm(
            one.scores, one.checked, truth=one.truth, round=0, split=one.name, threshold=Threshold(threshold)
        )
        if not one.whole:
            frame = frame.filter(pl.col("metric").is_in(OF_STEPS))
        if one.first_error:
            f1s += frame.filter(pl.col("metric") == "first_error_f1")["value"].to_list()
        frames.append(frame.with_columns((pl.lit(f"{one.name}/") + pl.col("metric")).alias("metric")))
    figures: list[Figure] = []
    if f1s:
        known = [value for value in f1s if value is not None]
        mean = sum(known) / len(known) if len(known) == len(f1s) else None
        figures.append(Figure("processbench/mean_f1", mean, len(f1s)))
    if tune_on is not None:
        figures += _tuned(sets, tune_on)
    return pl.concat([*frames, evaluation_rows(figures, round=0, subject="prm", subject_id=prm_id)])


def _tuned(sets: Sequence[LabelledSet], tune_on: str) -> list[Figure]:
    chosen = next((one for one in sets if one.name == tune_on and one.whole and one.truth.height), None)
    if chosen is None:
        have = ", ".join(one.name for one in sets if one.whole and one.truth.height) or "none"
        raise UserError(f"prm_evaluation.tune_on = {tune_on!r} is no set of whole solutions; there are: {have}")
    scores, labels = _solutions(chosen)
    try:
        threshold = choose_threshold(scores, labels, split=tune_on)
    except ValueError as error:
        raise UserError(f"prm_evaluation.tune_on = {tune_on!r}: {error}") from None
    figures = [Figure("processbench/tuned_threshold", threshold.value, len(labels))]
    for one in sets:
        if one.whole and one.truth.height:
            scores, labels = _solutions(one)
            found = processbench_f1(labels, scores, threshold)
            where = "tuned_here" if one.name == tune_on else "tuned"
            n = {"error": found.n_error, "correct": found.n_correct, "f1": found.n_error + found.n_correct}
            values = {"error": found.error, "correct": found.correct, "f1": found.f1}
            figures += [Figure(f"{one.name}/{where}_{name}", value, n[name]) for name, value in values.items()]
    return figures


def _solutions(one: LabelledSet) -> tuple[list[list[float]], list[int]]:
    """Scores of all steps, and the first wrong step, of each solution whose truth is known."""
    truth = one.truth.sort("rollout_id", "step_index").group_by("rollout_id", maintain_order=True).agg("is_good")
    scores = one.scores.sort("rollout_id", "step_index").group_by("rollout_id", maintain_order=True).agg("score")
    both = scores.join(truth, on="rollout_id", validate="1:1").sort("rollout_id")
    labels = first_wrong_steps(both["is_good"].to_list())
    return both["score"].to_list(), labels
