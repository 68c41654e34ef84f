"""The commands `import` and `export`."""

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from grpo_pipeline.errors import UserError

FORM_HELP = "math-shepherd, trl-stepwise, prm800k, prm800k-steps, processbench, rlhflow, math-aps, math-aps-tree or dpo"


def import_command(
    file: Annotated[Path, typer.Argument(help="A .jsonl, .json or .parquet file.")],
    form: Annotated[str, typer.Option(help=f"{FORM_HELP}.")],
    out: Annotated[str, typer.Option(help="Store to write to: a run's folder, or a new one.")],
    model: Annotated[Path | None, typer.Option(help="Model whose tokenizer makes rows for PRM training.")] = None,
    split: Annotated[str, typer.Option(help="train or eval.")] = "train",
    neutral: Annotated[
        str, typer.Option(help="What PRM800K's neutral ratings train as: good, bad or unlabelled.")
    ] = "good",
    template: Annotated[
        str | None, typer.Option(help="Text around the question in training rows, as prompt.template.")
    ] = None,
    max_length: Annotated[int, typer.Option(help="Longest training row, in tokens.")] = 2048,
) -> None:
    """Read others' step labels, as solutions to evaluate on and rows to train a PRM on."""
    from grpo_pipeline.counts import in_words
    from grpo_pipeline.exchange.importing import import_file
    from grpo_pipeline.exchange.records import Neutral
    from grpo_pipeline.prompts import DEFAULT_TEMPLATE

    _one_of("--split", split, ("train", "eval"))
    _one_of("--neutral", neutral, get_args(Neutral))
    if template is not None and template.count("{question}") != 1:
        raise UserError(f"--template {template!r}: it must hold {{question}} exactly once")
    ref = import_file(
        file,
        form,
        out,
        model=model,
        split=split,
        neutral=cast(Neutral, neutral),
        template=template or DEFAULT_TEMPLATE,
        max_length=max_length,
    )
    typer.echo(f"{ref}{' (was there already)' if ref.cached else ''}")
    for name, count in ref.manifest().counts.items():
        typer.echo(f"  {in_words(name)}: {count:,}")


def export_command(
    artifact: Annotated[str, typer.Argument(help="Folder of an artifact with step labels, solutions or rollouts.")],
    out: Annotated[Path, typer.Option(help="File to write (.jsonl, .json, .parquet); a folder for dataset.")],
    form: Annotated[str, typer.Option(help=f"dataset (a Hugging Face data set folder), {FORM_HELP}.")] = "dataset",
    license_id: Annotated[str, typer.Option("--license", help="Licence on the card, as the hub names it.")] = "unknown",
    push: Annotated[str | None, typer.Option(help="Upload the data set folder to the hub as this id.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --push: list what would be uploaded.")] = False,
) -> None:
    """Write an artifact in others' forms, or as a data set with a card, and upload that."""
    from grpo_pipeline.counts import in_words
    from grpo_pipeline.exchange.dataset_folder import FORM, write_dataset_folder
    from grpo_pipeline.exchange.exporting import export_artifact
    from grpo_pipeline.exchange.push import list_upload, push_folder
    from grpo_pipeline.inspect.opening import open_artifact

    if form != FORM and push is not None:
        raise UserError(f"--push uploads a data set folder; use --form {FORM}")
    if dry_run and push is None:
        raise UserError("--dry-run says what --push would upload; give --push ID")
    ref = open_artifact(artifact)
    if form == FORM:
        exported = write_dataset_folder(ref, out, license_id=license_id)
    else:
        exported = export_artifact(ref, form, out)
    typer.echo(f"{out}: {exported.rows:,} rows")
    for reason, count in sorted(exported.skipped.items()):
        typer.echo(f"  {in_words(reason)}: {count:,}")
    if push is None:
        return
    if dry_run:
        for file in list_upload(out):
            typer.echo(f"  would upload {file.path} ({file.bytes:,} bytes) to {push}")
    else:
        typer.echo(push_folder(out, push))


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{option} {value}: use one of {', '.join(allowed)}")
