"""A build under way: its scratch folder, its shards, its model, and the moment it becomes an artifact.

Publishing comes last and at once. On a local disk the finished folder, manifest included, is renamed into
place; on a remote store the manifest is the last object to be written. Before that moment nothing is visible.
"""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa
from pydantic import ValidationError

from grpo_pipeline import __version__
from grpo_pipeline.schemas import SCHEMA_VERSION
from grpo_pipeline.store.artifact import ArtifactRef, make_ref, read_manifest
from grpo_pipeline.store.filesystem import (
    LocalFiles,
    RemoteFiles,
    digest,
    explain,
    make_folder,
    read_bytes,
)
from grpo_pipeline.store.manifest import (
    MANIFEST,
    PLAN,
    STAGING,
    FileRecord,
    InsidePath,
    Manifest,
    ModelRecord,
    ParentRecord,
    Record,
    StageSpec,
    TableRecord,
    Timings,
)
from grpo_pipeline.store.shards import Marker, ShardResult, Staging, merge_receipts, shard_key


class StagedPlan(Record):
    """What an unfinished build says about itself, for the next session and for `gc`.

    Attributes:
        stage: Its stage; empty where an older version of the program began it.
        round: The artifact's round.
        parents: Fingerprints of the artifacts that the build reads.
        data: Where its files are, relative to the root.
        shards: How the work is cut, as the builder says it.
    """

    stage: str = ""
    round: int
    parents: list[str]
    data: InsidePath
    shards: list[str]


def read_staged_plan(files: LocalFiles | RemoteFiles, fingerprint: str) -> StagedPlan | None:
    """The plan of an unfinished build, or None where none was begun or what is there cannot be read."""
    path = f"{STAGING}/{fingerprint}/{PLAN}"
    if not files.exists(path):
        return None
    try:
        return StagedPlan.model_validate_json(read_bytes(files, path))
    except ValidationError:
        return None


class Build:
    """An artifact being made, under its lock (`Store.open_build`).

    Attributes:
        spec: What is being made.
        ref: The finished artifact: None until `finish`, and from the start where another process was first.
        staging: Where shards go.
        workdir: Local scratch folder that survives a kill (checkpoints); gone after `finish`.
        model_dir: Local folder for the model, empty at the start of every session: save the model there
            right before `finish`.
    """

    def __init__(
        self,
        spec: StageSpec,
        files: LocalFiles | RemoteFiles,
        rows_per_group: int,
        plan: list[str],
        found: ArtifactRef | None,
    ) -> None:
        self.spec = spec
        self.ref = found
        self._files = files
        base = Staging(files.root, spec.fingerprint, "").base
        data = f"{base}/data" if files.is_local else spec.path
        self.staging = Staging(files.root, spec.fingerprint, data, rows_per_group)
        scratch = files.scratch() / base
        self.workdir = scratch / "work"
        self.model_dir = scratch / ("data/model" if files.is_local else "model")
        self._scratch = scratch
        self._mark = time.monotonic()
        self._at_once: tuple[frozenset[str], float] = (frozenset(), 0.0)
        if found is not None:
            return
        if files.is_local and files.exists(f"{data}/{MANIFEST}"):
            # Killed between the manifest and the rename: all is there.
            self._publish(read_manifest(files, data))
            return
        self._open(plan)

    def _open(self, plan: list[str]) -> None:
        earlier = read_staged_plan(self._files, self.spec.fingerprint)
        if earlier is None or earlier.shards != plan:
            # Shards that were cut otherwise do not fit together with the ones to come.
            self._files.remove(f"{self.staging.base}/done")
            self._files.remove(self.staging.data)
        staged = StagedPlan(
            stage=self.spec.stage,
            round=self.spec.round,
            parents=[parent.fingerprint for parent in self.spec.parents],
            data=self.staging.data,
            shards=plan,
        )
        self._files.write(f"{self.staging.base}/{PLAN}", staged.model_dump_json().encode())
        with explain(f"making {self._scratch}"):
            LocalFiles(str(self.model_dir)).remove("")
            make_folder(self.workdir)
            make_folder(self.model_dir)

    def write(self, table: str, key: int | str, frame: pl.DataFrame | pa.Table) -> None:
        """Write one shard of one table, in place of an earlier one of that key.

        Raises:
            UserError: The frame is not the table's (`tables.conform`), or the disk is full or read-only.
        """
        now = time.monotonic()
        key = shard_key(key)
        self.staging.write(f"{table}.{key}", key, ShardResult({table: frame}), now - self._mark)
        self._mark = now

    def has(self, table: str, key: int | str) -> bool:
        """Whether `write` has finished for this table and key, now or before a restart."""
        return self.staging.marker(f"{table}.{shard_key(key)}") is not None

    def finish(
        self,
        counts: Mapping[str, int] | None = None,
        tokens: int = 0,
        receipt: Mapping[str, Any] | None = None,
        content_id: str | None = None,
    ) -> ArtifactRef:
        """Publish the artifact.

        Args:
            counts: Added to the shards' counts.
            tokens: Added to the shards' tokens.
            receipt: Put over the shards' merged receipts.
            content_id: Content id of the model in `model_dir`; required where there is one.
        """
        if self.ref is not None:
            raise RuntimeError(f"{self.ref} is finished already")
        markers = self.staging.markers()
        totals: dict[str, int] = {}
        for part in [*(marker.counts for marker in markers), counts or {}]:
            for name, number in part.items():
                totals[name] = totals.get(name, 0) + number
        seconds = {_timing_name(marker): marker.seconds for marker in markers}
        at_once, elapsed = self._at_once
        made_now = sum(marker.seconds for marker in markers if marker.key in at_once)
        worked = sum(seconds.values()) - made_now + min(made_now, elapsed)
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            stage=self.spec.stage,
            stage_version=self.spec.version,
            round=self.spec.round,
            seed=self.spec.seed,
            fingerprint=self.spec.fingerprint,
            config=json.loads(json.dumps(dict(self.spec.config))),
            parents=[_parent(parent, self._files.root) for parent in self.spec.parents],
            code_version=__version__,
            tables=_tables(markers),
            model=self._record_model(content_id),
            counts=totals,
            tokens=tokens + sum(marker.tokens for marker in markers),
            receipt={**merge_receipts([marker.receipt for marker in markers]), **(receipt or {})},
            timings=Timings(seconds=round(worked + time.monotonic() - self._mark, 3), shards=seconds),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._remove_leftovers(manifest)
        self._files.write(f"{self.staging.data}/{MANIFEST}", manifest.model_dump_json(indent=1).encode())
        return self._publish(manifest)

    def worked(self, shards: Sequence[int] = ()) -> None:
        """Start the clock of `finish` anew: what came before is in the shards' own timings.

        Args:
            shards: Those that were made since it was started, perhaps several at once: they took no longer than that.
        """
        now = time.monotonic()
        self._at_once = (frozenset(shard_key(shard) for shard in shards), now - self._mark)
        self._mark = now

    def _record_model(self, content_id: str | None) -> ModelRecord | None:
        local = LocalFiles(str(self.model_dir))
        names = local.walk("")
        if not names:
            local.remove("")
            return None
        if content_id is None:
            raise ValueError(f"stage {self.spec.stage}: there is a model in model_dir, so finish needs its content_id")
        records = [
            FileRecord(file=f"model/{name}", sha256=digest(local, name), bytes=local.size(name)) for name in names
        ]
        if isinstance(self._files, RemoteFiles):
            for name in names:
                self._files.upload(local.local(name), f"{self.staging.data}/model/{name}")
        return ModelRecord(content_id=content_id, files=records)

    def _remove_leftovers(self, manifest: Manifest) -> None:
        """Remove what a kill left among the finished files: a half-written one, a shard without its marker."""
        known = manifest.known_files()
        for path in self._files.walk(self.staging.data):
            if path.removeprefix(f"{self.staging.data}/") not in known:
                self._files.remove(path)

    def _publish(self, manifest: Manifest) -> ArtifactRef:
        if isinstance(self._files, LocalFiles):
            # A folder without manifest, left by a copy that was broken off; the lock is ours.
            self._files.remove(self.spec.path)
            self._files.rename(self.staging.data, self.spec.path)
        self._files.remove(self.staging.base)
        if not self._files.is_local:
            LocalFiles(str(self._scratch)).remove("")
        self.ref = make_ref(self._files, self.spec.path, manifest)
        return self.ref


def _tables(markers: list[Marker]) -> dict[str, TableRecord]:
    tables: dict[str, TableRecord] = {}
    for name in sorted({table for marker in markers for table in marker.tables}):
        shards = [marker.tables[name] for marker in markers if name in marker.tables]
        tables[name] = TableRecord(rows=sum(shard.rows for shard in shards), shards=shards)
    return tables


def _timing_name(marker: Marker) -> str:
    return f"{'+'.join(sorted(marker.tables))}/{marker.key}"


def _parent(ref: ArtifactRef, root: str) -> ParentRecord:
    store = None if ref.root == root else ref.root
    return ParentRecord(fingerprint=ref.fingerprint, stage=ref.stage, round=ref.round, path=ref.path, store=store)
