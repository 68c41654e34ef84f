"""The card of a data set folder: what is in it, where it comes from, how it was made, what it is not good for.

Every figure is counted from the rows or read from the manifests of the artifact and its ancestors.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo_pipeline.counts import in_words, left_out
from grpo_pipeline.exchange.records import OWN, StepRecord, hard
from grpo_pipeline.settings_text import toml_value
from grpo_pipeline.store import ArtifactRef, Manifest

if TYPE_CHECKING:
    from grpo_pipeline.store.sources import Sources

_SAMPLING = ("sampling", "prompt", "splitter", "group_size", "labelling", "replay", "form", "neutral", "max_length")
"""Settings of a stage that say how its rows came to be."""


def render_card(
    ref: ArtifactRef,
    sources: "Sources",
    records: Sequence[StepRecord],
    *,
    skipped: Counter[str],
    license_id: str,
    splits: Sequence[str],
    tables: Sequence[str],
) -> str:
    """README.md of the folder, with the YAML head that tells `datasets` which files belong together.

    Args:
        ref: The artifact.
        sources: It and its ancestors.
        records: Its solutions.
        skipped: Reason -> solutions that the default configuration leaves out.
        license_id: Goes into the head.
        splits: Splits that have a file.
        tables: The tables beside the default configuration.
    """
    manifests = [source.manifest() for source in sources.refs]
    parts = [
        _head(records, license_id, splits, tables),
        f"# Step labels of {len(records):,} solutions\n",
        "Each row is a solution cut into steps, and for each step whether it is good. Made with grpo-pipeline "
        f"{ref.manifest().code_version}; artifact `{ref.stage}`, round {ref.round}, "
        f"fingerprint `{ref.fingerprint[:12]}`.\n",
        "## Counts\n",
        _counts(records, skipped),
        "## Sources\n",
        _sources(records),
        "## How it was made\n",
        *(_stage(manifest) for manifest in manifests),
        "## Limits\n",
        _limits(records, license_id),
    ]
    return "\n".join(parts)


def render_dataset_card(ref: ArtifactRef, sources: "Sources") -> str:
    """The card of an artifact as it lies in the store, from manifests alone, so that it costs no look at the rows.

    Args:
        ref: The artifact.
        sources: It and its ancestors.
    """
    manifest = ref.manifest()
    counts = {f"rows of {name}": table.rows for name, table in manifest.tables.items()}
    counts |= {in_words(name): count for name, count in manifest.counts.items()}
    parts = [
        f"# {ref.stage}, round {ref.round}\n",
        f"`{ref}`, fingerprint `{ref.fingerprint[:12]}`, made with grpo-pipeline {manifest.code_version}. "
        f"`grpo-pipeline export {ref} --out FOLDER` writes it as a folder for `datasets`.\n",
        "## Counts\n",
        "\n".join(["| what | count |", "|---|---:|", *(f"| {name} | {n:,} |" for name, n in counts.items()), ""]),
        "## How it was made\n",
        *(_stage(source.manifest()) for source in sources.refs),
    ]
    return "\n".join(parts)


def _head(records: Sequence[StepRecord], license_id: str, splits: Sequence[str], tables: Sequence[str]) -> str:
    size = next(name for limit, name in _SIZES if len(records) < limit)
    lines = [
        "---",
        f"license: {license_id}",
        f"size_categories: ['{size}']",
        "tags: [process-reward-model, step-labels, math]",
        "configs:",
        "- config_name: default",
        "  default: true",
        "  data_files:",
    ]
    for split in splits:
        lines += [f"  - split: {split}", f"    path: data/{split}*.parquet"]
    for name in tables:
        lines += [f"- config_name: {name}", f"  data_files: tables/{name}/*.parquet"]
    return "\n".join([*lines, "---", ""])


_SIZES = [(1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10**12, "n>1M")]


def _counts(records: Sequence[StepRecord], skipped: Counter[str]) -> str:
    labels = [label for record in records for label in record.labels]
    known = [label for label in labels if label is not None]
    good = sum(hard(label) for label in known)
    rows = [
        ("problems", len({record.question for record in records})),
        ("solutions", len(records)),
        ("steps", len(labels)),
        ("steps labelled good", good),
        ("steps labelled wrong", len(known) - good),
        ("steps without label", len(labels) - len(known)),
        *((f"solutions left out of `default`: {reason}", count) for reason, count in sorted(left_out(skipped).items())),
    ]
    return "\n".join(["| what | count |", "|---|---:|", *(f"| {name} | {count:,} |" for name, count in rows), ""])


def _sources(records: Sequence[StepRecord]) -> str:
    counted = Counter(str(record.extra_of(OWN).get("source") or record.form) for record in records)
    return "\n".join([*(f"- {source}: {count:,} solutions" for source, count in counted.most_common()), ""])


def _stage(manifest: Manifest) -> str:
    lines = [f"- **{manifest.stage}**, round {manifest.round}, {manifest.created[:10]}"]
    rows = ", ".join(f"{record.rows:,} {name}" for name, record in manifest.tables.items())
    lines += [f"  - rows: {rows}"] if rows else []
    lines += [f"  - model: `{manifest.model.content_id}`"] if manifest.model else []
    lines += [f"  - {name}: `{_plain(manifest.config[name])}`" for name in _SAMPLING if name in manifest.config]
    lines += [f"  - model from outside: `{value}`" for value in manifest.outside_models]
    lines += [f"  - {in_words(name)}: {count:,}" for name, count in sorted(manifest.counts.items())]
    lines += [f"  - tokens: {manifest.tokens:,}"] if manifest.tokens else []
    return "\n".join([*lines, ""])


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items() if item is not None)
    return toml_value(value)


def _limits(records: Sequence[StepRecord], license_id: str) -> str:
    points = []
    if any(record.form == OWN for record in records):
        points.append(
            "A label says whether completions of the sampling model reached the right answer from that step. A good "
            "step from which that model fails is labelled wrong, and a wrong one from which it recovers good; "
            "nobody read the steps."
        )
        points.append("`soft_labels` are shares of completions; with few completions they are coarse.")
    else:
        points.append("The labels are those of the file that was imported; its authors say how they were made.")
        points.append("`labels` is true for every label above 0, a neutral rating included; `soft_labels` keeps it.")
    points.append(
        "`default` holds solutions up to their last labelled step; a solution with a gap before it is left out "
        "there, and is in the other tables."
    )
    if license_id == "unknown":
        points.append("No licence was stated when this folder was written: the sources' own terms hold.")
    return "\n".join([*(f"- {point}" for point in points), ""])
