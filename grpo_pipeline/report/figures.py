"""Figures of a reward model, side by side for the sets that it was measured on."""

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grpo_pipeline.store import ArtifactRef


def print_figures(figures: ArtifactRef) -> None:
    """Print the `evaluations` of a reward model: one row a figure and one column a set."""
    rows = figures.read("evaluations").with_columns(
        pl.col("metric").str.split_exact("/", 1).struct.rename_fields(["set", "figure"]).alias("_")
    )
    Console().print(figures_by_set(rows.unnest("_")))


def figures_by_set(rows: pl.DataFrame) -> Table:
    """One row a figure, one column a set; the number of steps or solutions behind a figure in brackets.

    Args:
        rows: `evaluations` columns and set, figure: the two parts of the metric's name.
    """
    sets = rows["set"].unique(maintain_order=True).to_list()
    table = Table(title=f"Reward model {rows['subject_id'][0]}", title_justify="left")
    table.add_column("figure")
    for name in sets:
        table.add_column(str(name), justify="right")
    values = {(row["set"], row["figure"]): row for row in rows.iter_rows(named=True)}
    for figure in rows["figure"].unique(maintain_order=True).to_list():
        table.add_row(Text(str(figure)), *(_cell(values.get((name, figure))) for name in sets))
    return table


def _cell(row: dict[str, object] | None) -> str:
    if row is None:
        return ""
    value = "-" if row["value"] is None else f"{row['value']:.3f}"
    return f"{value} ({row['n']:,})"
