"""Distributions of scores and labels, computed over all solutions of a run: what the report's histograms show."""

from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
import polars as pl

from grpo_pipeline.evaluation.binary import expected_calibration_error
from grpo_pipeline.models.aggregate import Aggregate, score_solutions
from grpo_pipeline.report.evidence import Evidence
from grpo_pipeline.report.series import number

CALIBRATION_BINS = 10
SCORE_BINS = 20
MAX_POSITIONS = 12
"""Step positions shown by themselves; later ones share the last bar."""

Target = Literal["truth", "label", "verdict"]


def calibration(evidence: Evidence, how: str) -> dict[str, Any]:
    """Reliability of the scores by round: what share was good, of steps with about the same score.

    Held-out steps against the exact truth; where no truth is known, the hard labels of whatever steps were both
    labelled and scored; where there are none either, whole held-out solutions against their verdicts.

    Returns:
        target, unit, rounds: round, ece, n, bins (mean score, share good, n) without empty bins.
    """
    steps = evidence.steps.filter(pl.col("score").is_not_null()).join(
        evidence.solutions.select("rollout_id", "round", "set"), on="rollout_id"
    )
    held_out = steps.filter((pl.col("set") == "held-out") & pl.col("is_good").is_not_null())
    labelled = steps.filter(pl.col("hard").is_not_null())
    target: Target = "truth" if held_out.height else "label" if labelled.height else "verdict"
    if target == "truth":
        pairs = held_out.select("round", "score", good=pl.col("is_good"))
    elif target == "label":
        pairs = labelled.select("round", "score", good=pl.col("hard") == 1)
    else:
        decided = _decided(evidence, how)
        pairs = decided.select("round", "score", good=pl.col("verdict") == "correct")
    rounds = []
    for (key,), part in pairs.sort("round").group_by("round", maintain_order=True):
        good, scores = part["good"].to_numpy(), part["score"].cast(pl.Float64).to_numpy()
        ece = expected_calibration_error(good, scores, CALIBRATION_BINS)
        rounds.append({"round": key, "ece": number(ece), "n": part.height, "bins": _reliability(good, scores)})
    return {"target": target, "unit": "solutions" if target == "verdict" else "steps", "rounds": rounds}


def _reliability(good: np.ndarray[Any, Any], scores: np.ndarray[Any, Any]) -> list[list[float | None]]:
    which = np.minimum((scores * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    return [
        [number(float(scores[inside].mean())), number(float(good[inside].mean())), int(inside.sum())]
        for b in range(CALIBRATION_BINS)
        if (inside := which == b).any()
    ]


def score_histograms(evidence: Evidence, how: str) -> dict[str, Any]:
    """Solution scores of right and of wrong held-out solutions by round, in `SCORE_BINS` equal bins of [0, 1]."""
    decided = _decided(evidence, how)
    rounds = []
    for (key,), part in decided.sort("round").group_by("round", maintain_order=True):
        row: dict[str, Any] = {"round": key}
        for name in ("correct", "wrong"):
            scores = part.filter(pl.col("verdict") == name)["score"].to_numpy()
            which = np.minimum((scores * SCORE_BINS).astype(np.int64), SCORE_BINS - 1)
            row[name] = np.bincount(which, minlength=SCORE_BINS).tolist()
        rounds.append(row)
    return {"how": how, "bins": SCORE_BINS, "rounds": rounds}


def _decided(evidence: Evidence, how: str) -> pl.DataFrame:
    """Solutions with a score, right or without a right answer; held-out ones where there are any."""
    solutions = evidence.solutions.with_columns(
        pl.col("verdict").replace_strict(
            {"correct": "correct", "wrong": "wrong", "no_answer": "wrong"}, default=None, return_dtype=pl.String
        )
    ).filter(pl.col("verdict").is_not_null())
    if held_out := (solutions["set"] == "held-out").any():
        solutions = solutions.filter((pl.col("set") == "held-out") == held_out)
    scored = evidence.steps.filter(pl.col("score").is_not_null()).select("rollout_id", "step_index", "score")
    assert how in get_args(Aggregate)
    aggregate: Aggregate = how  # type: ignore[assignment]  # narrowed by the line above, which mypy does not follow
    return solutions.join(score_solutions(scored, aggregate), on="rollout_id")


LABEL_CLASSES = ("0", "to 1/4", "to 1/2", "to 3/4", "below 1", "1", "unlabelled")
"""Classes of the soft label: exactly 0, four ranges, exactly 1."""


def labels_by_position(evidence: Evidence) -> dict[str, Any]:
    """Steps of each class of soft label by position in the solution, by round.

    Returns:
        classes, rounds: round, positions: one list of counts (in the order of the classes) for each position.
    """
    steps = evidence.steps.filter(pl.col("label_source").is_not_null()).join(
        evidence.solutions.select("rollout_id", "round"), on="rollout_id"
    )
    value = pl.coalesce("soft", pl.col("hard").cast(pl.Float32))
    classed = steps.select(
        "round",
        pl.col("step_index").clip(upper_bound=MAX_POSITIONS - 1).alias("position"),
        pl.when(value.is_null())
        .then(6)
        .when(value <= 0)
        .then(0)
        .when(value >= 1)
        .then(5)
        .otherwise((value * 4).ceil().clip(1, 4).cast(pl.Int32))
        .alias("class"),
    )
    rounds = []
    for (key,), part in classed.sort("round").group_by("round", maintain_order=True):
        counts = np.zeros((MAX_POSITIONS, len(LABEL_CLASSES)), dtype=np.int64)
        np.add.at(counts, (part["position"].to_numpy(), part["class"].to_numpy()), 1)
        last = int(np.flatnonzero(counts.sum(axis=1)).max())
        rounds.append({"round": key, "positions": counts[: last + 1].tolist()})
    return {"classes": list(LABEL_CLASSES), "last_is_open": MAX_POSITIONS, "rounds": rounds}


def label_and_score(evidence: Evidence) -> dict[str, Any]:
    """Steps that have both, counted by soft label (rows of `LABEL_CLASSES` but the last) and score (10 columns)."""
    both = evidence.steps.filter(pl.col("soft").is_not_null() & pl.col("score").is_not_null()).join(
        evidence.solutions.select("rollout_id", "round"), on="rollout_id"
    )
    return {"classes": list(LABEL_CLASSES[:-1]), "rounds": list(_agreement(both))}


def _agreement(both: pl.DataFrame) -> Iterator[dict[str, Any]]:
    for (key,), part in both.sort("round").group_by("round", maintain_order=True):
        soft = part["soft"].cast(pl.Float64).to_numpy()
        rows = np.where(soft <= 0, 0, np.where(soft >= 1, 5, np.clip(np.ceil(soft * 4), 1, 4))).astype(np.int64)
        columns = np.minimum((part["score"].cast(pl.Float64).to_numpy() * 10).astype(np.int64), 9)
        counts = np.zeros((6, 10), dtype=np.int64)
        np.add.at(counts, (rows, columns), 1)
        yield {"round": key, "counts": counts.tolist()}
