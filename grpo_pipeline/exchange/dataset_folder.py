"""An artifact as a Hugging Face data set folder, which `datasets.load_dataset(folder)` opens.

README.md                    the card, made from the manifests
data/train.parquet           TRL's columns, and what else is known of each solution (and data/test.parquet for
                             evaluation problems)
tables/<name>/*.parquet      the artifact's tables as they are, one configuration each
"""

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from grpo_pipeline.counts import listed
from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.artifacts import artifact_records
from grpo_pipeline.exchange.card import render_card
from grpo_pipeline.exchange.exporting import Exported
from grpo_pipeline.exchange.forms import find_form
from grpo_pipeline.exchange.records import OWN, StepRecord
from grpo_pipeline.exchange.trl_stepwise import write
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.store import ArtifactRef
from grpo_pipeline.store.sources import sources_of

FORM = "dataset"
"""What this is called beside the forms of single files."""

SCHEMA = pa.schema(
    [
        ("prompt", pa.string()),
        ("completions", pa.list_(pa.field("element", pa.string()))),
        ("labels", pa.list_(pa.field("element", pa.bool_()))),
        ("soft_labels", pa.list_(pa.field("element", pa.float32()))),
        ("gold_answer", pa.string()),
        ("final_answer", pa.string()),
        ("correct", pa.bool_()),
        ("source", pa.string()),
        ("round", pa.int32()),
        ("problem_id", pa.string()),
        ("rollout_id", pa.string()),
    ]
)
"""Columns of the default configuration."""


def write_dataset_folder(ref: ArtifactRef, folder: Path, *, license_id: str = "unknown") -> Exported:
    """Write the folder; it must not exist, or be empty.

    Args:
        ref: An artifact with step labels, own or imported.
        folder: Where to.
        license_id: The card's licence, an identifier of the Hugging Face Hub ("mit", "apache-2.0", "unknown").

    Raises:
        UserError: There is something in the folder, or the artifact has no labelled solutions.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: not an empty folder; give a new one, or remove it")
    records = [record for record in artifact_records(ref, find_form("trl-stepwise")) if isinstance(record, StepRecord)]
    splits = _splits(ref, records)
    skipped: Counter[str] = Counter()
    rows: dict[str, list[dict[str, object]]] = {}
    for record, split in zip(records, splits, strict=True):
        written = write([record])
        skipped += written.skipped
        for line in written.rows:
            rows.setdefault(split, []).append(_row(record, line))
    if not rows:
        raise UserError(
            f"{ref}: none of its {len(records)} solutions has a label for each of its steps ({listed(skipped)})"
        )
    try:
        (folder / "data").mkdir(parents=True, exist_ok=True)
        for split, lines in rows.items():
            pq.write_table(
                pa.Table.from_pylist(lines, SCHEMA), folder / "data" / f"{split}.parquet", compression="zstd"
            )
        tables = _copy_tables(ref, folder)
        card = render_card(
            ref, sources_of(ref), records, skipped=skipped, license_id=license_id, splits=sorted(rows), tables=tables
        )
        (folder / "README.md").write_text(card, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
    return Exported(sum(map(len, rows.values())), skipped)


def _splits(ref: ArtifactRef, records: list[StepRecord]) -> list[str]:
    """Train or test for each record, as the problem's split says; an imported file has one split."""
    settings = ref.manifest().config
    if "solutions" in ref.tables:
        return ["test" if settings.get("split") == "eval" else "train"] * len(records)
    problems = dict(sources_of(ref).gather("problems").select("problem_id", "split").iter_rows())
    return ["test" if problems[record.extra["problem_id"]] == "eval" else "train" for record in records]


def _row(record: StepRecord, line: dict[str, object]) -> dict[str, object]:
    known = record.extra_of(OWN)  # a file's own columns of these names may hold anything
    completions = line["completions"]
    assert isinstance(completions, list)
    soft = known.get("soft") or record.labels
    return {
        **{name: line[name] for name in ("prompt", "completions", "labels")},
        "soft_labels": list(soft)[: len(completions)],
        "gold_answer": record.gold_answer,
        "final_answer": record.final_answer,
        **{name: known.get(name) for name in ("correct", "round", "problem_id", "rollout_id")},
        "source": known.get("source") or record.form,
    }


def _copy_tables(ref: ArtifactRef, folder: Path) -> list[str]:
    """Write the artifact's own tables into the folder; returns their names."""
    names = [name for name in ref.tables if name in TABLES]
    for name in names:
        target = folder / "tables" / name / "part-00000.parquet"
        target.parent.mkdir(parents=True)
        part = target.with_suffix(".part")
        ref.scan(name, "full").sink_parquet(part, compression="zstd")
        shutil.move(part, target)
    return names
