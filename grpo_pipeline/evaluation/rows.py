"""Rows of the `evaluations` table, and the one way in which means get their standard errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt
import polars as pl

from grpo_pipeline.schemas import TABLES

_SCHEMA = {
    "round": pl.Int32,
    "subject": pl.String,
    "subject_id": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
    "standard_error": pl.Float64,
    "n": pl.Int64,
}


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Attributes:
        metric: Its name.
        value: None where it is undefined.
        n: Problems, solutions or steps behind it.
        standard_error: None where none is given.
    """

    metric: str
    value: float | None
    n: int
    standard_error: float | None = None


def mean_figure(metric: str, per_problem: npt.ArrayLike) -> Figure:
    """The mean over problems with its standard error, clustered by problem.

    Samples of one problem are not independent, so each problem counts as one observation: the standard error
    is the sample standard deviation (n - 1) of the problems' values over sqrt(problems).
    """
    values = np.asarray(per_problem, dtype=np.float64)
    if not values.size:
        return Figure(metric, None, 0)
    error = float(values.std(ddof=1)) / sqrt(values.size) if values.size > 1 else None
    return Figure(metric, float(values.mean()), values.size, error)


def evaluation_rows(
    figures: Sequence[Figure],
    *,
    round: int,
    subject: str,
    subject_id: str,
) -> pl.DataFrame:
    """`evaluations` rows of one subject."""
    rows = [(round, subject, subject_id, f.metric, f.value, f.standard_error, f.n) for f in figures]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row").select(TABLES["evaluations"].schema.names)
