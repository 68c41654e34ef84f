"""Check every finished artifact of a run against its manifest, byte for byte."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow.parquet as pq

from grpo_pipeline.errors import UserError
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.store.artifact import check_file, check_shard, make_ref, read_manifest
from grpo_pipeline.store.filesystem import LocalFiles, RemoteFiles, open_files
from grpo_pipeline.store.manifest import (
    ARTIFACTS,
    MANIFEST,
    STAGING,
    Manifest,
    ShardRecord,
    fingerprint,
    parse_artifact_name,
)
from grpo_pipeline.tables import conform

Kind = Literal["manifest", "damaged", "schema", "rows", "key", "unknown file", "parent", "fingerprint"]


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        kind: What sort of thing.
        path: The artifact or file, relative to the run.
        message: What was expected and found.
    """

    kind: Kind
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.path}: {self.message}"


def verify(run: str | Path) -> list[Finding]:
    """Hash every file of every finished artifact and check manifests, schemas, row counts, keys and parents.

    Returns:
        What was found, artifact by artifact; empty where all is well.

    Raises:
        UserError: There is no such run.
    """
    files = open_files(run)
    if not any(files.exists(folder) for folder in (ARTIFACTS, STAGING)):  # the first stage may be under way
        raise UserError(f"{files.root}: there is no run here (no folder {ARTIFACTS}/ in it)")
    findings: list[Finding] = []
    for name in files.children(ARTIFACTS):
        path = f"{ARTIFACTS}/{name}"
        if parse_artifact_name(name) is None:
            findings.append(Finding("unknown file", path, "not the name of an artifact"))
        elif not files.exists(f"{path}/{MANIFEST}"):
            if files.is_local:  # on a remote store this is what an unfinished build looks like
                findings.append(Finding("manifest", path, f"no {MANIFEST}: unfinished, and seen by nobody"))
        else:
            findings.extend(_verify_artifact(files, path))
    return findings


def _verify_artifact(files: LocalFiles | RemoteFiles, path: str) -> Iterator[Finding]:
    try:
        manifest = read_manifest(files, path)
    except UserError as error:
        yield Finding("manifest", path, str(error))
        return
    yield from _check_identity(files, path, manifest)
    for table, record in manifest.tables.items():
        damages = [finding for shard in record.shards for finding in _check_shard(files, path, table, shard)]
        yield from damages
        rows = sum(shard.rows for shard in record.shards)
        if rows != record.rows:
            yield Finding("rows", path, f"table {table}: {record.rows} rows by the manifest, {rows} in its shards")
        if not damages:
            yield from _check_key(files, path, manifest, table)
    for file in manifest.model.files if manifest.model else ():
        try:
            check_file(files, path, file, "full")
        except UserError as error:
            yield Finding("damaged", f"{path}/{file.file}", str(error))
    known = manifest.known_files()
    for name in files.walk(path):
        if name.removeprefix(f"{path}/") not in known:
            yield Finding("unknown file", name, "not in the manifest; no reader opens it")


def _check_shard(files: LocalFiles | RemoteFiles, path: str, table: str, shard: ShardRecord) -> Iterator[Finding]:
    where = f"{path}/{shard.file}"
    try:
        check_shard(files, path, shard, "full")
        with files.open(where) as file:
            schema = pq.read_schema(file)
    except UserError as error:
        yield Finding("damaged", where, str(error))
        return
    try:
        expected = conform(schema.empty_table(), table, where).schema
    except UserError as error:
        yield Finding("schema", where, str(error))
        return
    if not schema.equals(expected):
        yield Finding("schema", where, f"types differ from the table's: {schema}")


def _check_identity(files: LocalFiles | RemoteFiles, path: str, manifest: Manifest) -> Iterator[Finding]:
    expected = fingerprint(
        stage=manifest.stage,
        version=manifest.stage_version,
        round=manifest.round,
        config=manifest.config,
        parents=[parent.fingerprint for parent in manifest.parents],
        seed=manifest.seed,
        schema_version=manifest.schema_version,
    )
    name = f"{manifest.stage}-r{manifest.round}-{expected[:12]}"
    if manifest.fingerprint != expected or path != f"{ARTIFACTS}/{name}":
        yield Finding("fingerprint", path, f"the manifest's content is that of {name} ({expected})")
    for parent in manifest.parents:
        if parent.store is None and not files.exists(f"{parent.path}/{MANIFEST}"):
            yield Finding("parent", path, f"its parent {parent.path} is gone")


def _check_key(files: LocalFiles | RemoteFiles, path: str, manifest: Manifest, table: str) -> Iterator[Finding]:
    key = list(TABLES[table].key)
    ids = make_ref(files, path, manifest).scan(table).select(key).collect()
    doubles = ids.filter(ids.is_duplicated())
    if doubles.height:
        example = doubles.row(0, named=True)
        yield Finding("key", path, f"table {table}: {doubles.height} rows share a key with another, such as {example}")
