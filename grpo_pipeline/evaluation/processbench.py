"""ProcessBench (Zheng et al. 2024, arXiv 2412.06559): find a solution's first wrong step, or that there is none."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import polars as pl

from grpo_pipeline.errors import UserError
from grpo_pipeline.evaluation.first_error import (
    FIXED,
    FirstErrorFigures,
    Threshold,
    choose_threshold,
    first_error_figures,
    predict_first_error,
)

_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "id": pl.String,
    "generator": pl.String,
    "problem": pl.String,
    "steps": pl.List(pl.String),
    "label": pl.Int32,
    "final_answer_correct": pl.Boolean,
}


def read_processbench(path: Path) -> pl.DataFrame:
    """Read a subset as published: a JSON list, or one JSON object a line.

    Returns:
        id, generator, problem, steps (list of texts), label (index of the first wrong step, -1 if none),
        final_answer_correct.

    Raises:
        UserError: The file is missing or broken, or a record's label is no step of its solution.
    """
    records = _read_json(path)
    rows = []
    for index, record in enumerate(records):
        where = f"{path}, record {index}"
        if not isinstance(record, dict) or not _SCHEMA.keys() <= record.keys():
            raise UserError(f"{where}: expected an object with {', '.join(_SCHEMA)}")
        steps, label = record["steps"], record["label"]
        if not isinstance(steps, list) or not steps or not all(isinstance(step, str) for step in steps):
            raise UserError(f"{where}: steps must be a list of texts, at least one")
        if not isinstance(label, int) or not -1 <= label < len(steps):
            raise UserError(f"{where}: label is {label!r}, expected -1 or the index of one of {len(steps)} steps")
        rows.append({name: record[name] for name in _SCHEMA})
    return pl.DataFrame(rows, schema=_SCHEMA)


def processbench_f1(
    labels: npt.ArrayLike, scores: Sequence[npt.ArrayLike], threshold: Threshold = FIXED
) -> FirstErrorFigures:
    """F1 of a step scorer on one subset: the first step scored below the threshold is its first wrong step.

    Args:
        labels: (S,) index of the first wrong step, -1 if none.
        scores: Step scores of each solution, one a step.
        threshold: Fixed, or chosen on another subset (`choose_threshold`; the paper tunes on its GSM8K subset).
    """
    return first_error_figures(predict_first_error(scores, threshold.value), labels)


def processbench_table(
    subsets: Mapping[str, tuple[npt.ArrayLike, Sequence[npt.ArrayLike]]], *, tune_on: str | None = None
) -> pl.DataFrame:
    """F1 of each subset and their mean.

    Args:
        subsets: Name -> (labels, step scores of each solution).
        tune_on: Subset that the threshold is chosen on, as the paper does with gsm8k; None is 0.5. That subset's
            own figures are then not held out, and the table says so.

    Returns:
        subset, error, correct, f1 (all in [0, 1]), n_error, n_correct, threshold, tuned_here; the last row,
        "mean", holds the mean F1.
    """
    threshold = choose_threshold(subsets[tune_on][1], subsets[tune_on][0], split=tune_on) if tune_on else FIXED
    rows: list[dict[str, Any]] = []
    for name, (labels, scores) in subsets.items():
        figures = processbench_f1(labels, scores, threshold)
        rows.append(
            {
                "subset": name,
                "error": figures.error,
                "correct": figures.correct,
                "f1": figures.f1,
                "n_error": figures.n_error,
                "n_correct": figures.n_correct,
                "threshold": threshold.value,
                "tuned_here": name == threshold.split,
            }
        )
    table = pl.DataFrame(rows)
    mean = {"subset": "mean", "f1": table["f1"].mean(), "threshold": threshold.value, "tuned_here": tune_on is not None}
    return pl.concat([table, pl.DataFrame([mean])], how="diagonal_relaxed")


def _read_json(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if not text.strip():
        raise UserError(f"{path}: the file is empty")
    try:
        if text.lstrip().startswith("["):
            return list(json.loads(text))
        # Split at line feeds only: JSON strings may hold other line separators.
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None
