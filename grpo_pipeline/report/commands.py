"""The command `report`."""

from pathlib import Path
from typing import Annotated

import typer

from grpo_pipeline.errors import UserError


def report_command(
    run: Annotated[str, typer.Argument(help="A run's folder.")],
    out: Annotated[Path | None, typer.Option(help="File to write; RUN/report.html if not given.")] = None,
    solutions: Annotated[int, typer.Option(help="Solutions in the table at most; the charts count all.")] = 5000,
) -> None:
    """Write a page with charts and solutions of a run: one file for a browser, which loads nothing."""
    from grpo_pipeline.inspect.opening import explain_damage
    from grpo_pipeline.report.page import write_report

    if solutions < 0:
        raise UserError(f"--solutions {solutions}: give 0 or more")
    with explain_damage(run):
        page = write_report(run, out, limit=solutions)
    typer.echo(page)
