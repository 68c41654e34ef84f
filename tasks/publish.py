"""What a person sees of a finished stage in Prefect's UI."""

from prefect.artifacts import create_markdown_artifact
from prefect.context import TaskRunContext

from grpo_pipeline.counts import in_words
from grpo_pipeline.exchange.card import render_dataset_card
from grpo_pipeline.store import ArtifactRef
from grpo_pipeline.store.sources import sources_of
from tasks.guard import publishing
from tasks.keys import artifact_key

DATASETS = ("step_labels", "prm_dataset", "imported")
"""Stages whose artifact is a data set that others may use: they get its card."""


def publish(artifact: ArtifactRef) -> None:
    """Rows, counts and cost of an artifact, and the card of a data set, under keys that all rounds share."""
    if TaskRunContext.get() is None:
        return
    with publishing(f"{artifact.stage}, round {artifact.round}"):
        _publish(artifact)


def _publish(artifact: ArtifactRef) -> None:
    run = artifact.root.rstrip("/").rsplit("/", 1)[-1]
    description = f"{artifact.stage}, round {artifact.round}"
    create_markdown_artifact(_describe(artifact), key=artifact_key(run, artifact.stage), description=description)
    if artifact.stage in DATASETS:
        card = render_dataset_card(artifact, sources_of(artifact))
        create_markdown_artifact(card, key=artifact_key(run, f"{artifact.stage}-card"), description=description)


def _describe(artifact: ArtifactRef) -> str:
    manifest = artifact.manifest()
    lines = [
        f"`{artifact}`",
        "",
        f"Made in {manifest.timings.seconds:.1f} s" + (f", {manifest.tokens:,} tokens." if manifest.tokens else "."),
        "",
        *_table("rows", {name: table.rows for name, table in manifest.tables.items()}),
        *_table("counts", {in_words(name): count for name, count in manifest.counts.items()}),
    ]
    if manifest.model is not None:
        lines += [f"Model `{manifest.model.content_id}`.", ""]
    return "\n".join(lines)


def _table(title: str, values: dict[str, int]) -> list[str]:
    if not values:
        return []
    return [f"| {title} | |", "|---|---:|", *(f"| {name} | {value:,} |" for name, value in sorted(values.items())), ""]
