"""The commands `inspect`, `lineage`, `verify`, `gc` and `diff`."""

from typing import Annotated

import typer

from grpo_pipeline.errors import UserError


def inspect_command(
    path: Annotated[str, typer.Argument(help="An artifact's folder (RUN/artifacts/NAME), or a run's.")],
    rows: Annotated[int, typer.Option(help="Sample rows or solutions to show.")] = 3,
) -> None:
    """Show an artifact: tables, columns, key figures, lineage, and a few solutions with their labels."""
    from rich.console import Console

    from grpo_pipeline.inspect.artifact import show_artifact
    from grpo_pipeline.inspect.opening import explain_damage, open_path
    from grpo_pipeline.inspect.run import show_run
    from grpo_pipeline.store import ArtifactRef

    if rows < 0:
        raise UserError(f"--rows {rows}: give 0 or more")
    opened = open_path(path)
    with explain_damage(opened.root):
        if isinstance(opened, ArtifactRef):
            show_artifact(opened, Console(), rows)
        else:
            show_run(opened, Console())


def lineage_command(path: Annotated[str, typer.Argument(help="An artifact's folder.")]) -> None:
    """Show what an artifact was made from, back to problems and models."""
    from grpo_pipeline.inspect.opening import open_artifact
    from grpo_pipeline.store.lineage import lineage, render_lineage

    typer.echo(render_lineage(lineage(open_artifact(path))))


def verify_command(run: Annotated[str, typer.Argument(help="A run's folder.")]) -> None:
    """Check every file of a run against its manifests; exit code 1 where something is wrong."""
    from grpo_pipeline.store import Store
    from grpo_pipeline.store.verify import verify

    findings = verify(run)
    for finding in findings:
        typer.echo(str(finding))
    if findings:
        typer.echo(f"{len(findings)} finding{'s' * (len(findings) != 1)}")
        raise typer.Exit(1)
    typer.echo(f"{len(Store(run).artifacts())} artifacts, all as they were written")


def gc_command(
    run: Annotated[str, typer.Argument(help="A run's folder.")],
    keep_last: Annotated[int, typer.Option(help="Newest rounds to keep, with all that they were made from.")],
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it only what would go is listed.")] = False,
) -> None:
    """Remove artifacts that no kept round needs, and builds that nobody will go on with.

    What `relabel`, `judge` and `import` made stays, whatever its round, with all that it was made from.
    """
    from grpo_pipeline.store.gc import collect, plan_gc

    if keep_last < 1:
        raise UserError(f"--keep-last {keep_last}: at least the newest round is kept; give 1 or more")
    plan = plan_gc(run, keep_last)
    for ref in plan.by_hand:
        typer.echo(f"kept {ref.path}: made by a command of yours, which no run repeats")
    doomed = [ref.path for ref in plan.remove] + [folder for folders in plan.stale.values() for folder in folders]
    if not doomed:
        typer.echo(f"nothing to remove; {len(plan.keep)} artifacts stay")
        return
    removed = collect(plan) if yes else doomed
    for folder in removed:
        typer.echo(f"{'removed' if yes else 'would remove'} {folder}")
    kept = f"{len(plan.keep)} artifacts stay"
    typer.echo(f"{kept}; {plan.bytes:,} bytes {'freed' if yes else 'would be freed: run again with --yes'}")


def diff_command(
    a: Annotated[str, typer.Argument(help="An artifact's folder, or a run's.")],
    b: Annotated[str, typer.Argument(help="Another of the same kind.")],
) -> None:
    """Show what changed between two artifacts: settings, rows, labels, scores, figures."""
    from rich.console import Console

    from grpo_pipeline.inspect.diff import diff_artifacts, diff_runs
    from grpo_pipeline.inspect.diff_view import show_diff
    from grpo_pipeline.inspect.opening import explain_damage, open_path
    from grpo_pipeline.store import ArtifactRef, Store

    one, two = open_path(a), open_path(b)
    with explain_damage(one.root), explain_damage(two.root):
        if isinstance(one, ArtifactRef) and isinstance(two, ArtifactRef):
            sections = diff_artifacts(one, two)
        elif isinstance(one, Store) and isinstance(two, Store):
            sections = diff_runs(one, two)
        else:
            raise UserError("give two artifacts or two runs, not one of each")
    show_diff(sections, a, b, Console())
