"""One line a stage on standard output: what was found and what was made, for runs without Prefect."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from grpo_pipeline.stages.run import ModelRef
from grpo_pipeline.store import ArtifactRef

P = ParamSpec("P")
R = TypeVar("R", bound=ArtifactRef | ModelRef)


def with_lines(stage: Callable[P, R], /) -> Callable[P, R]:
    """Wrap a stage (`stages.catalog.Wrapper`): once it is done, its line is printed and flushed."""

    @functools.wraps(stage)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        ref = stage(*args, **kwargs)
        if ref not in args:  # one that was handed on (choose_completer) has its line already
            print_line(ref)
        return ref

    return call


def print_line(made: ArtifactRef | ModelRef) -> None:
    """Print a stage's artifact with its round, the seconds it took and its rows; nothing of a model from outside."""
    artifact = made.artifact if isinstance(made, ModelRef) else made
    if artifact is None:
        return
    manifest = artifact.manifest()
    rows = sum(table.rows for table in manifest.tables.values())
    about = f"round {artifact.round}, {manifest.timings.seconds:,.1f} s, {rows:,} rows"
    typer.echo(f"{'found' if artifact.cached else 'made '}  {artifact}  ({about})")
