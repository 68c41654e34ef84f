"""The library's commands. `flows.cli` adds the flows and is the console program.

Heavy packages are imported inside the commands, so that ``grpo-pipeline --help`` starts in a moment. A command
whose own module is heavy is registered by name and that module imported when the command is called.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from grpo_pipeline import __version__
from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.commands import export_command, import_command
from grpo_pipeline.inspect.commands import diff_command, gc_command, inspect_command, lineage_command, verify_command

app = typer.Typer(
    name="grpo-pipeline",
    help="From problems to a better policy: step labels, process reward models and GRPO over Parquet.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        typer.echo(f"grpo-pipeline {__version__}")
        raise typer.Exit


def run() -> None:
    """Run the program; a user's mistake is one message and exit code 2."""
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
