"""A reference to a finished artifact: small enough to pass between tasks, and the way to open it."""

import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from grpo_pipeline.errors import UserError
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.store.filesystem import (
    Files,
    LocalFiles,
    RemoteFiles,
    digest,
    open_files,
    read_bytes,
)
from grpo_pipeline.store.manifest import (
    MANIFEST,
    FileRecord,
    InsidePath,
    Manifest,
    ModelRecord,
    ShardRecord,
    parse_manifest,
)

Check = Literal["quick", "full"]
"""How a file is checked before use: its size and Parquet footer, or its sha256 as well."""


class ArtifactRef(BaseModel):
    """Where a finished artifact is and what it is.

    Attributes:
        root: The store's root, a folder or an fsspec URL.
        path: The artifact's folder, relative to the root.
        fingerprint: 64 hex digits: what it was made from (`manifest.fingerprint`).
        stage: The stage that made it.
        round: The RL round it belongs to.
        tables: Names of its tables.
        cached: Whether it was found rather than made by the call that gave this reference; not stored.
    """

    model_config = ConfigDict(frozen=True)

    root: str
    path: InsidePath
    fingerprint: str
    stage: str
    round: int
    tables: tuple[str, ...]
    cached: bool = Field(False, exclude=True, repr=False)

    def __eq__(self, other: object) -> bool:
        # Found or made, it is the same artifact.
        return isinstance(other, ArtifactRef) and (self.root, self.fingerprint) == (other.root, other.fingerprint)

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        return fields | {"cached": self.cached} if (info.context or {}).get("in_transit") else fields

    def __hash__(self) -> int:
        return hash((self.root, self.fingerprint))

    def __str__(self) -> str:
        return f"{self.root}/{self.path}"

    def manifest(self) -> Manifest:
        """The artifact's manifest; raises UserError where it is gone, broken or too new."""
        return read_manifest(open_files(self.root), self.path)

    def scan(self, table: str, check: Check = "quick") -> pl.LazyFrame:
        """A table's rows, lazily, in the order they were written; by default only size and footer are checked.

        Raises:
            UserError: The artifact has no such table, or a shard is missing or damaged.
        """
        manifest = self.manifest()
        if table not in manifest.tables:
            have = ", ".join(manifest.tables) or "none"
            raise UserError(f"{self}: there is no table {table!r} in this artifact; its tables: {have}")
        if table not in TABLES:
            raise UserError(f"{self}/{MANIFEST}: table {table!r} is none that this program knows; it was edited")
        files = open_files(self.root)
        shards = manifest.tables[table].shards
        for shard in shards:
            check_shard(files, self.path, shard, check)
        return _scan_shards(files, [f"{self.path}/{shard.file}" for shard in shards], table)

    def read(self, table: str, check: Check = "full") -> pl.DataFrame:
        """A table's rows; every shard's hash is checked first, once a process for a file that stays as it is."""
        return self.scan(table, check).collect()

    def model_path(self, check: Check = "full") -> Path:
        """A local folder with the artifact's model; that of a remote store is downloaded once.

        The files' hashes are checked, once a process for files that stay as they are.

        Raises:
            UserError: The artifact holds no model, or a file of it is missing or damaged.
        """
        model = self.manifest().model
        if model is None:
            raise UserError(f"{self}: this artifact holds no model")
        files = open_files(self.root)
        if isinstance(files, LocalFiles):
            for record in model.files:
                check_file(files, self.path, record, check)
            return files.local(f"{self.path}/model")
        return _download_model(files, self.path, model, check)


def read_manifest(files: Files, path: str) -> Manifest:
    """The manifest in an artifact's folder."""
    return parse_manifest(read_bytes(files, f"{path}/{MANIFEST}"), f"{files.root}/{path}/{MANIFEST}")


def make_ref(files: Files, path: str, manifest: Manifest) -> ArtifactRef:
    """The reference to an artifact whose manifest is at hand."""
    return ArtifactRef(
        root=files.root,
        path=path,
        fingerprint=manifest.fingerprint,
        stage=manifest.stage,
        round=manifest.round,
        tables=tuple(manifest.tables),
    )


def check_file(files: Files, artifact: str, record: FileRecord, check: Check) -> None:
    """Raise UserError where a file is missing, of another size or (`full`) of another hash than recorded."""
    path = f"{artifact}/{record.file}"
    where = f"{files.root}/{path}"
    remedy = f"it was changed after it was written; remove {files.root}/{artifact} and run the stage again"
    if isinstance(files, LocalFiles) and files.leaves(artifact, path):
        raise UserError(f"{where}: a symbolic link to outside of its artifact, which is not followed; {remedy}")
    size = files.size(path)
    if size != record.bytes:
        raise UserError(f"{where}: damaged: {size} bytes, the manifest says {record.bytes}; {remedy}")
    if check == "full" and _digest_once(files, path) != record.sha256:
        raise UserError(f"{where}: damaged: its sha256 is not the manifest's; {remedy}")


_digests: dict[tuple[str, str], tuple[Hashable, str]] = {}


def _digest_once(files: Files, path: str) -> str:
    """The sha256 of a file, worked out again only where the file has been written since."""
    stamp = files.stamp(path)
    known = _digests.get((files.root, path))
    if known is not None and stamp is not None and known[0] == stamp:
        return known[1]
    found = digest(files, path)
    _digests[files.root, path] = (stamp, found)
    return found


def check_shard(files: Files, artifact: str, shard: ShardRecord, check: Check) -> None:
    """`check_file`, and that the Parquet footer can be read and has the recorded number of rows."""
    check_file(files, artifact, shard, check)
    path = f"{artifact}/{shard.file}"
    with files.open(path) as file:
        try:
            rows = pq.read_metadata(file).num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{files.root}/{path}: damaged: its Parquet footer cannot be read ({error})") from None
    if rows != shard.rows:
        raise UserError(f"{files.root}/{path}: damaged: {rows} rows, the manifest says {shard.rows}")


def _scan_shards(files: "LocalFiles | RemoteFiles", paths: list[str], table: str) -> pl.LazyFrame:
    if isinstance(files, RemoteFiles):
        import pyarrow.dataset as ds

        # Through fsspec, whose credentials the store uses for all else; predicates reach the row groups.
        frames = [
            pl.scan_pyarrow_dataset(ds.dataset(files.remote(path), filesystem=files.filesystem, format="parquet"))
            for path in paths
        ]
    else:
        local = [files.local(path) for path in paths]
        if not TABLES[table].open_columns:
            return pl.scan_parquet(local, glob=False, hive_partitioning=False)
        frames = [pl.scan_parquet(path, glob=False, hive_partitioning=False) for path in local]
    # Shards differ in open columns only; `diagonal` fills those with nulls.
    return pl.concat(frames, how="diagonal") if len(frames) > 1 else frames[0]


def _download_model(files: RemoteFiles, artifact: str, model: ModelRecord, check: Check) -> Path:
    """The model in a cache on this machine, by its content id; what is there already is checked like any other file."""
    cache = LocalFiles(str(files.scratch() / "models"))
    folder = model.content_id
    for record in model.files:
        target = cache.local(f"{folder}/{record.file}")
        if target.exists():
            try:
                check_file(cache, folder, record, check)
                continue
            except UserError:  # damaged in the cache; the store's own is fetched again
                target.unlink()
        # Under another name until it is whole, so that a killed download is never taken for a model; and one of its
        # own, since another process may fetch the same.
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            files.download(f"{artifact}/{record.file}", part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        try:
            check_file(cache, folder, record, "full")
        except UserError:
            target.unlink()
            raise UserError(
                f"{files.root}/{artifact}/{record.file}: damaged: its size or sha256 is not the manifest's; it was "
                f"changed after it was written; remove {files.root}/{artifact} and run the stage again"
            ) from None
    return cache.local(f"{folder}/model")
