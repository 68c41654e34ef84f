"""An artifact as a file in a form."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from grpo_pipeline.counts import listed
from grpo_pipeline.errors import UserError
from grpo_pipeline.exchange.artifacts import artifact_records
from grpo_pipeline.exchange.files import write_rows
from grpo_pipeline.exchange.forms import find_form
from grpo_pipeline.store import ArtifactRef


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        rows: Lines in the file.
        skipped: Reason -> records that the form cannot hold.
    """

    rows: int
    skipped: Counter[str]


def export_artifact(ref: ArtifactRef, form: str, path: Path) -> Exported:
    """Write an artifact in a form; the suffix (.jsonl, .json, .parquet) decides how.

    Raises:
        UserError: The artifact has nothing that this form holds.
    """
    chosen = find_form(form)
    written = chosen.write(artifact_records(ref, chosen))
    if not written.rows:
        reasons = listed(written.skipped) if written.skipped else "it is empty"
        raise UserError(f"{ref}: nothing to write as {form} ({reasons})")
    write_rows(path, written.rows)
    return Exported(len(written.rows), written.skipped)
