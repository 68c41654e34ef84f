"""What a run prints at its end: a short table for each part of the summary, and where everything lies."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages.run import Run
from grpo_pipeline.store.filesystem import read_bytes


def print_run(config: RunConfig) -> None:
    """Print the summary that the run's folder holds (see `print_summary`)."""
    files = Run(config).store.files
    print_summary(json.loads(read_bytes(files, "summary.json")), files.root)


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
    console.print(f"Open {folder}/report.html in a browser to look at the run", highlight=False, soft_wrap=True)


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
