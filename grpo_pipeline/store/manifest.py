"""What an artifact says about itself: `manifest.json`, and the fingerprint that names it.

A fingerprint is a hash of everything that determines an artifact's content, and of nothing else. Times,
code version and timings stand in the manifest for people; nothing is ever decided by them.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from grpo_pipeline.errors import UserError
from grpo_pipeline.schemas import SCHEMA_VERSION

if TYPE_CHECKING:
    from grpo_pipeline.store.artifact import ArtifactRef

MANIFEST, PLAN = "manifest.json", "plan.json"
ARTIFACTS, STAGING, LOCKS = "artifacts", "staging", "locks"

RELABEL_STAGE, JUDGE_STAGE, IMPORTED_STAGE = "relabel", "judge", "imported"

BY_HAND = frozenset({RELABEL_STAGE, JUDGE_STAGE, IMPORTED_STAGE})
"""Stages of commands that a person gives. `gc` keeps their artifacts: a run does not make them again."""

DERIVED_STAGES = frozenset({RELABEL_STAGE})
"""Those among them that hold a run's own table a second time, with other values for the same rows."""

_STAGE_NAME = re.compile(r"[a-z0-9_]+")
_OUTSIDE_MODEL = re.compile(r"model_\d+")
_ARTIFACT_NAME = re.compile(r"(?P<stage>[a-z0-9_]+)-r(?P<round>\d+)-(?P<digits>[0-9a-f]{12})")


def inside(path: str) -> str:
    """The path, if it stays inside the folder that it is relative to; ValueError if not."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or ":" in parts[0] or "\0" in path:
        raise ValueError(f"path {path!r} leaves the store")
    return path


InsidePath = Annotated[str, AfterValidator(inside)]


class Record(BaseModel):
    """A part of the manifest: frozen, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FileRecord(Record):
    """One file, by its path relative to the artifact."""

    file: InsidePath
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class ShardRecord(FileRecord):
    """One Parquet file of a table."""

    rows: int = Field(ge=0)


class TableRecord(Record):
    """A table's rows and shards, in order."""

    rows: int
    shards: list[ShardRecord]


class ModelRecord(Record):
    """The model folder's files and the content id of its weights."""

    content_id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    files: list[FileRecord]


class ParentRecord(Record):
    """An artifact that this one was made from.

    `store` is the root of another store that the parent lives in, null for the artifact's own; it is shown
    to people and never opened.
    """

    fingerprint: str
    stage: str
    round: int
    path: InsidePath
    store: str | None = None


class Timings(Record):
    """Seconds of work, over all sessions that a build took; `shards` by shard where known."""

    seconds: float
    shards: dict[str, float] = Field(default_factory=dict)


class Manifest(Record):
    """The whole of `manifest.json`; its presence is what makes an artifact finished."""

    schema_version: int
    stage: str
    stage_version: int
    round: int
    seed: int
    fingerprint: str
    config: dict[str, Any]
    parents: list[ParentRecord]
    code_version: str
    tables: dict[str, TableRecord]
    model: ModelRecord | None
    counts: dict[str, int]
    tokens: int
    receipt: dict[str, Any]
    timings: Timings
    created: str

    @property
    def settings(self) -> dict[str, Any]:
        """What it was made with, but for `outside_models`."""
        return {name: value for name, value in self.config.items() if not _OUTSIDE_MODEL.fullmatch(name)}

    @property
    def outside_models(self) -> list[str]:
        """Content ids of models from outside the store that it was made with; `stages.run.Run.spec` names them."""
        return [str(value) for name, value in self.config.items() if _OUTSIDE_MODEL.fullmatch(name)]

    def known_files(self) -> set[str]:
        """Every file of the artifact, relative to its folder, the manifest included."""
        shards = {shard.file for record in self.tables.values() for shard in record.shards}
        return {MANIFEST} | shards | {file.file for file in (self.model.files if self.model else ())}


@dataclass(frozen=True)
class StageSpec:
    """What a stage is asked to make.

    Attributes:
        stage: Name of the stage, in [a-z0-9_].
        version: Raised by the stage's author when the stage's meaning changes.
        round: RL round, 0 before any RL.
        config: JSON-able; only what determines the content (no folder, device, batch size or worker count).
        parents: The artifacts that it is made from; their order counts.
        seed: Seed of the stage's random choices.
    """

    stage: str
    version: int
    round: int
    config: Mapping[str, Any]
    parents: tuple["ArtifactRef", ...]
    seed: int

    def __post_init__(self) -> None:
        if not _STAGE_NAME.fullmatch(self.stage):
            raise ValueError(f"stage {self.stage!r}: a stage's name is lower case letters, digits and underscores")
        if self.round < 0:
            raise ValueError(f"stage {self.stage}: round is {self.round}, it counts from 0")

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits, the same wherever and whenever the same content is asked for."""
        parents = [parent.fingerprint for parent in self.parents]
        return fingerprint(
            stage=self.stage,
            version=self.version,
            round=self.round,
            config=self.config,
            parents=parents,
            seed=self.seed,
        )

    @property
    def path(self) -> str:
        """The artifact's folder, relative to the store's root."""
        return f"{ARTIFACTS}/{self.stage}-r{self.round}-{self.fingerprint[:12]}"


def fingerprint(
    *,
    stage: str,
    version: int,
    round: int,
    config: Mapping[str, Any],
    parents: list[str],
    seed: int,
    schema_version: int = SCHEMA_VERSION,
) -> str:
    """Hash of what determines an artifact's content; the tables' schema version is part of it.

    Raises:
        ValueError: The configuration is not plain JSON.
    """
    try:
        text = json.dumps(
            [schema_version, stage, version, round, dict(config), parents, seed],
            sort_keys=True,
            separators=(",", ":"),
            allow_nan=False,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"stage {stage}: the configuration is not plain JSON: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()


def parse_artifact_name(name: str) -> tuple[str, int] | None:
    """Stage and round of an artifact's folder, or None where the name is not one of an artifact."""
    match = _ARTIFACT_NAME.fullmatch(name)
    return (match["stage"], int(match["round"])) if match else None


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest.

    Raises:
        UserError: It is of a newer version, not JSON, or not a manifest.
    """
    try:
        raw = json.loads(data)
    except ValueError as error:
        raise UserError(
            f"{where}: not valid JSON ({error}); remove the artifact's folder and run its stage again"
        ) from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UserError(
            f"{where}: written with schema version {version}, this program knows {SCHEMA_VERSION}; "
            "update grpo-pipeline, or use another run folder"
        )
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{where}: not a manifest: {key}: {first['msg'].removeprefix('Value error, ')}") from None
