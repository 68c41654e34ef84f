"""Rows of the `metrics` table as training makes them."""

from collections.abc import Mapping
from typing import Any

import polars as pl

_KEYS: dict[str, Any] = {"step": pl.Int32, "round": pl.Int32, "stage": pl.String}


class MetricsTable:
    """One row an optimizer step; a metric that a step does not have is null in it.

    Attributes:
        rows: JSON values, for checkpoints.
    """

    def __init__(self, stage: str, round: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self._stage = stage
        self._round = round

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row."""
        values = {name: float(value) for name, value in metrics.items()}
        self.rows.append({"step": step, "round": self._round, "stage": self._stage, **values})

    def last(self, count: int) -> pl.DataFrame:
        """The newest rows, as a frame."""
        return _frame(self.rows[-count:])

    def load(self, rows: list[dict[str, Any]]) -> None:
        """Take up the rows of a checkpoint."""
        self.rows = list(rows)

    def frame(self) -> pl.DataFrame:
        """All rows."""
        return _frame(self.rows)


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    names = list(dict.fromkeys(name for row in rows for name in row)) or list(_KEYS)
    schema = {name: _KEYS.get(name, pl.Float64) for name in names}
    return pl.DataFrame([{name: row.get(name) for name in names} for row in rows], schema=schema)
