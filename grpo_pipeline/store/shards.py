"""Writing shards into a build's staging folder, each whole or not at all.

A shard may hold rows of several tables. It counts as made when its *marker* is there, a small JSON file that
is written after the shard's Parquet files; so a killed build loses only the shard that it was at.
`Staging` can be pickled: workers elsewhere make and write shards on their own.
"""

import hashlib
import io
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, ValidationError

from grpo_pipeline.errors import UserError
from grpo_pipeline.store.artifact import check_file
from grpo_pipeline.store.filesystem import LocalFiles, RemoteFiles, open_files, read_bytes
from grpo_pipeline.store.manifest import PLAN, STAGING, Record, ShardRecord
from grpo_pipeline.tables import conform

ZSTD_LEVEL = 3
DEFAULT_ROWS_PER_GROUP = 16384

_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class ShardResult:
    """What a stage yields for one shard.

    Attributes:
        frames: Table name -> rows; give every table of the stage, with no rows where there are none.
        counts: What was dropped or is worth counting; added up over the shards.
        tokens: Tokens sampled or trained on.
        receipt: Anything JSON-able about cost; merged over the shards by `merge_receipts`.
    """

    frames: Mapping[str, pl.DataFrame | pa.Table]
    counts: Mapping[str, int] = field(default_factory=dict)
    tokens: int = 0
    receipt: Mapping[str, Any] = field(default_factory=dict)


class Marker(Record):
    """A finished shard, as its marker file records it."""

    key: str
    tables: dict[str, ShardRecord]
    counts: dict[str, int] = Field(default_factory=dict)
    tokens: int = 0
    receipt: dict[str, Any] = Field(default_factory=dict)
    seconds: float


@dataclass(frozen=True)
class Staging:
    """The staging folder of one artifact.

    Attributes:
        root: The store's root.
        fingerprint: Of the artifact that is being built.
        data: Folder of the files to be published, relative to the root: inside the staging folder on a local
            disk, and the artifact's own folder on a remote store, which renames no folders.
        rows_per_group: Rows of a Parquet row group.
    """

    root: str
    fingerprint: str
    data: str
    rows_per_group: int = DEFAULT_ROWS_PER_GROUP

    @property
    def base(self) -> str:
        """The staging folder, relative to the root."""
        return f"{STAGING}/{self.fingerprint}"

    def files(self) -> LocalFiles | RemoteFiles:
        """The files of the store."""
        return open_files(self.root)

    def write(self, name: str, key: str, result: ShardResult, seconds: float) -> None:
        """Write a shard's tables, then its marker; a shard of that name is replaced.

        Args:
            name: The marker's name.
            key: The part of the Parquet files' names that tells shards apart.
            result: The shard.
            seconds: How long it took to make.
        """
        files = self.files()
        if not files.exists(f"{self.base}/{PLAN}"):
            raise UserError(
                f"{files.root}/{self.base}: missing while writing shard {name}: the store was removed or moved while "
                "it was built; run the same command again"
            )
        # The old marker goes first: it must never vouch for new content.
        files.remove(self._marker(name))
        tables = {}
        for table, frame in result.frames.items():
            file = f"{table}/part-{key}.parquet"
            data = conform(frame, table, f"{files.root}/{self.data}/{file}")
            content = encode(data, self.rows_per_group)
            files.write(f"{self.data}/{file}", content)
            sha256 = hashlib.sha256(content).hexdigest()
            tables[table] = ShardRecord(file=file, rows=data.num_rows, sha256=sha256, bytes=len(content))
        marker = Marker(
            key=key,
            tables=tables,
            counts=dict(result.counts),
            tokens=result.tokens,
            receipt=dict(result.receipt),
            seconds=round(seconds, 3),
        )
        files.write(self._marker(name), marker.model_dump_json().encode())

    def marker(self, name: str) -> Marker | None:
        """The marker of a shard whose files are all there with their size; None if it must be made (again)."""
        files = self.files()
        if not files.exists(self._marker(name)):
            return None
        try:
            marker = Marker.model_validate_json(read_bytes(files, self._marker(name)))
        except ValidationError:  # cut off or edited: it vouches for nothing
            return None
        try:
            for record in marker.tables.values():
                check_file(files, self.data, record, "quick")
        except UserError:
            return None
        return marker

    def markers(self) -> list[Marker]:
        """Every finished shard, in natural order of the keys ("step-9" before "step-10")."""
        names = [name.removesuffix(".json") for name in self.files().children(f"{self.base}/done")]
        found = [marker for name in names if (marker := self.marker(name)) is not None]
        return sorted(found, key=lambda marker: (_natural(marker.key), sorted(marker.tables)))

    def _marker(self, name: str) -> str:
        return f"{self.base}/done/{name}.json"


def shard_key(key: int | str) -> str:
    """The key as it stands in file names; numbers have five digits at least."""
    text = f"{key:05d}" if isinstance(key, int) else key
    if not _KEY.fullmatch(text):
        raise ValueError(f"shard key {key!r}: only letters, digits, _ and - may stand in a file name")
    return text


def make_shard(staging: Staging, make: Callable[[int], ShardResult], index: int) -> None:
    """Make one shard and write it; what a worker runs."""
    started = time.monotonic()
    result = make(index)
    key = shard_key(index)
    staging.write(key, key, result, time.monotonic() - started)


def encode(table: pa.Table, rows_per_group: int = DEFAULT_ROWS_PER_GROUP) -> bytes:
    """A Parquet file: zstd, sorted by problem_id (stably) where there is one, statistics for pruning."""
    if "problem_id" in table.column_names:
        order = pc.sort_indices(table, sort_keys=[("problem_id", "ascending")])
        table = table.take(order)
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        row_group_size=rows_per_group,
        write_statistics=True,
    )
    return buffer.getvalue()


def merge_receipts(receipts: list[dict[str, Any]]) -> dict[str, Any]:
    """One receipt of many: numbers are added, lists joined, mappings merged; other values must agree or are listed."""
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(key for receipt in receipts for key in receipt):
        values = [receipt[key] for receipt in receipts if key in receipt]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            merged[key] = sum(values)
        elif all(isinstance(value, dict) for value in values):
            merged[key] = merge_receipts(values)
        elif all(isinstance(value, list) for value in values):
            merged[key] = [item for value in values for item in value]
        else:
            distinct = [value for i, value in enumerate(values) if value not in values[:i]]
            merged[key] = distinct[0] if len(distinct) == 1 else distinct
    return merged


def _natural(key: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)]
