"""What a run prints at its end: a short table for each part of the summary, and where everything lies."""

from typing import Any

from rich.console import Console
from rich.table import Table


def print_summary(summary: dict[str, Any], folder: str, console: Console | None = None) -> None:
    """Print `stages.summary.summarise`'s dictionary as three tables.

    Args:
        summary: The run's summary.
        folder: Where the run lies; printed below the tables.
        console: Where to print; standard output by default.
    """
    console = console or Console(width=None)
    console.print(_table("Policy on held-out problems", summary["rounds"]))
    console.print(_table("Reward model and labels against the truth", summary["prms"]))
    console.print(_table("Stages", summary["stages"]))
    console.print(f"Everything lies in {folder}/ (artifacts/*/manifest.json, summary.json)", highlight=False)


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    columns = list(rows[0]) if rows else []
    for column in columns:
        numeric = any(isinstance(row[column], int | float) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {count}" for key, count in value.items()) or "-"
    return str(value)
