"""The store of a run: find an artifact by what it was made from, or build it.

runs/quickstart/
  artifacts/rollouts-r1-3f9a1c0de452/     one finished artifact
    manifest.json
    rollouts/part-00000.parquet           one folder a table
    model/                                safetensors, where the stage makes a model
  staging/<fingerprint>/                  unfinished builds, from which a restart goes on
  locks/<fingerprint>.lock                held while building; the kernel frees it when the holder dies
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from grpo_pipeline.errors import UserError
from grpo_pipeline.progress import progress
from grpo_pipeline.store.artifact import ArtifactRef, make_ref, read_manifest
from grpo_pipeline.store.build import Build
from grpo_pipeline.store.filesystem import explain, is_disk_full, make_folder, open_files
from grpo_pipeline.store.manifest import ARTIFACTS, LOCKS, MANIFEST, STAGING, StageSpec, parse_artifact_name
from grpo_pipeline.store.shards import DEFAULT_ROWS_PER_GROUP, ShardResult, Staging, make_shard, shard_key

RunAll = Callable[[Staging, Sequence[int]], Iterable[Any]]
"""Makes the shards of these indices into a staging folder (`shards.make_shard`), in any order, yielding as each is
done."""

_log = logging.getLogger(__name__)


class Store:
    """The artifacts under one root.

    Args:
        root: Folder or fsspec URL; made by the first build.
        rows_per_group: Rows of a Parquet row group (`StoreConfig.rows_per_group`).
    """

    def __init__(self, root: str | Path, rows_per_group: int = DEFAULT_ROWS_PER_GROUP) -> None:
        self.files = open_files(root)
        self.root = self.files.root
        self.rows_per_group = rows_per_group

    def find(self, spec: StageSpec) -> ArtifactRef | None:
        """The finished artifact of a spec, or None."""
        if not self.files.exists(f"{spec.path}/{MANIFEST}"):
            return None
        manifest = read_manifest(self.files, spec.path)
        if manifest.fingerprint != spec.fingerprint:
            raise UserError(
                f"{self.root}/{spec.path}: holds another artifact (fingerprint {manifest.fingerprint}, "
                f"expected {spec.fingerprint}); remove the folder, or use another run folder"
            )
        return make_ref(self.files, spec.path, manifest).model_copy(update={"cached": True})

    def artifact(self, name: str) -> ArtifactRef | None:
        """The finished artifact in the folder ``artifacts/NAME``, or None.

        Raises:
            UserError: Its manifest cannot be read.
        """
        path = f"{ARTIFACTS}/{name}"
        if parse_artifact_name(name) is None or not self.files.exists(f"{path}/{MANIFEST}"):
            return None
        return make_ref(self.files, path, read_manifest(self.files, path))

    def artifacts(self, stage: str | None = None, round: int | None = None) -> list[ArtifactRef]:
        """Finished artifacts in order of round, stage and fingerprint.

        Raises:
            UserError: There is no run at the root, or a manifest cannot be read.
        """
        if not any(self.files.exists(folder) for folder in (ARTIFACTS, STAGING)):
            raise UserError(
                f"{self.root}: there is no run here (no folder artifacts/ in it); "
                "give a run's folder, such as runs/NAME"
            )
        found = []
        for name in self.files.children(ARTIFACTS):
            parsed = parse_artifact_name(name)
            if parsed is None or (stage not in (None, parsed[0])) or (round not in (None, parsed[1])):
                continue
            if (ref := self.artifact(name)) is not None:
                found.append(ref)
        return sorted(found, key=lambda ref: (ref.round, ref.stage, ref.fingerprint))

    def build(
        self,
        spec: StageSpec,
        shards: int | Sequence[str],
        make: Callable[[int], ShardResult],
    ) -> ArtifactRef:
        """Make an artifact shard by shard, one after the other, or take the one that is there (see `build_by`).

        Args:
            spec: What to make.
            shards: As for `build_by`.
            make: Shard index -> its rows; must depend on spec and index alone.
        """

        def one_by_one(staging: Staging, todo: Sequence[int]) -> Iterator[None]:
            for index in todo:
                make_shard(staging, make, index)
                yield

        return self.build_by(spec, shards, one_by_one)

    def build_by(self, spec: StageSpec, shards: int | Sequence[str], run_all: RunAll) -> ArtifactRef:
        """Have an artifact's shards made by others, or take the artifact that is there.

        Each shard is written as it finishes. A build that was killed goes on with the shards that are
        missing, and its result equals, row for row, that of an undisturbed one.

        Args:
            spec: What to make.
            shards: Their number, or a text for each that says what is in it: where those differ from an
                earlier session's, its shards are made again.
            run_all: Has the missing shards made, by workers of any kind, which write them themselves.

        Raises:
            UserError: Disk full, store read-only or gone; what was finished is kept.
        """
        found = self.find(spec)
        if found is not None:
            return found
        plan = [str(i) for i in range(shards)] if isinstance(shards, int) else list(shards)
        with self.open_build(spec, plan) as build:
            if build.ref is None:
                self._make_missing(build, len(plan), run_all)
                build.finish()
        assert build.ref is not None
        return build.ref

    def _make_missing(self, build: Build, total: int, run_all: RunAll) -> None:
        def missing() -> list[int]:
            return [i for i in range(total) if build.staging.marker(shard_key(i)) is None]

        todo = missing()
        with progress(f"{build.spec.stage}, round {build.spec.round}", total, "shards") as bar:
            bar.advance(total - len(todo))
            for _ in run_all(build.staging, todo):
                bar.advance()
        left = missing()
        if left:
            raise RuntimeError(f"stage {build.spec.stage}: run_all ended without shards {left}")
        build.worked(todo)

    @contextmanager
    def open_build(self, spec: StageSpec, plan: Sequence[str] = ()) -> Iterator[Build]:
        """Build an artifact by hand, under its lock; trainers use this.

        Where `build.ref` is not None at the start, another process has finished it: take that. An exception
        leaves the staging folder, from which the next session goes on.

        Args:
            spec: What to make.
            plan: How the work is cut; an earlier session with another plan is not gone on from.

        Raises:
            UserError: Disk full, store read-only or gone.
            RuntimeError: The block ended without `finish`.
        """
        with self._lock(spec):
            found = self.find(spec)
            build = Build(spec, self.files, self.rows_per_group, list(plan), found)
            try:
                yield build
            except Exception as error:
                if isinstance(error, UserError) or not is_disk_full(error):
                    raise
                # A checkpoint, a model or the ledger: what other libraries write beside the shards.
                raise UserError(
                    f"disk full while {spec.stage}, round {spec.round}, was made in {self.root} ({error}); free some "
                    "space: finished shards and the last checkpoint are kept; run the same command again and it goes "
                    "on from there"
                ) from error
            if build.ref is None:
                raise RuntimeError(f"stage {spec.stage}: the build ended without finish()")

    @contextmanager
    def _lock(self, spec: StageSpec) -> Iterator[None]:
        path = lock_path(self.files.scratch(), spec.fingerprint)
        with explain(f"locking {path}"):
            make_folder(path.parent)
            lock = FileLock(path)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                _log.info("%s: another process is building it; waiting for its result", spec.path)
                lock.acquire()
        try:
            yield
        finally:
            lock.release()


def lock_path(scratch: Path, fingerprint: str) -> Path:
    """The lock file of an artifact; on a remote store it excludes writers of this machine only."""
    return scratch / LOCKS / f"{fingerprint}.lock"
