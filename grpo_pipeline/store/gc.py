"""Remove what no kept round needs: old artifacts, and staging folders that nobody will go on with.

An artifact is kept if it belongs to one of the newest rounds, or if a kept one or a build under way was made
from it, however far back. Rounds decide, never a clock. What a person made by a command (relabelled, judged,
imported) is kept whatever its round: no run would make it again.
"""

from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from grpo_pipeline.store.artifact import ArtifactRef
from grpo_pipeline.store.build import read_staged_plan
from grpo_pipeline.store.filesystem import LocalFiles, RemoteFiles, explain, make_folder, open_files
from grpo_pipeline.store.manifest import BY_HAND, MANIFEST, STAGING
from grpo_pipeline.store.store import Store, lock_path


@dataclass(frozen=True)
class GcPlan:
    """What a collection would do.

    Attributes:
        root: The run.
        remove: Artifacts that no kept round needs.
        stale: Builds that nobody will go on with, since their artifact is finished or their round no longer
            kept: fingerprint -> folders, relative to the root.
        keep: Artifacts that stay.
        by_hand: Those of them that stay because a person made them, though no kept round needs them.
        bytes: What removing frees.
    """

    root: str
    remove: tuple[ArtifactRef, ...]
    stale: dict[str, tuple[str, ...]]
    keep: tuple[ArtifactRef, ...]
    by_hand: tuple[ArtifactRef, ...]
    bytes: int


def plan_gc(run: str | Path, keep_last: int) -> GcPlan:
    """What `collect` would remove; changes nothing.

    Args:
        run: Folder or fsspec URL of the run.
        keep_last: How many of the newest rounds that hold an artifact are kept; at least 1.

    Raises:
        UserError: There is no such run.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last is {keep_last}; at least the newest round is kept")
    files = open_files(run)
    refs = Store(run).artifacts()
    by_fingerprint = {ref.fingerprint: ref for ref in refs}
    kept_rounds = set(sorted({ref.round for ref in refs})[-keep_last:])
    oldest = min(kept_rounds, default=0)
    needed = [ref.fingerprint for ref in refs if ref.round in kept_rounds]
    stale: dict[str, tuple[str, ...]] = {}
    for name in files.children(STAGING):
        plan = read_staged_plan(files, name)
        if name in by_fingerprint or plan is None:
            stale[name] = (f"{STAGING}/{name}",)
        elif plan.round < oldest and plan.stage not in BY_HAND:
            stale[name] = (f"{STAGING}/{name}", plan.data)
        else:
            needed.extend(plan.parents)
    of_rounds = _with_ancestors(by_fingerprint, needed)
    by_hand = tuple(ref for ref in refs if ref.stage in BY_HAND and ref.fingerprint not in of_rounds)
    reached = of_rounds | _with_ancestors(by_fingerprint, [ref.fingerprint for ref in by_hand])
    remove = tuple(ref for ref in refs if ref.fingerprint not in reached)
    keep = tuple(ref for ref in refs if ref.fingerprint in reached)
    folders = [ref.path for ref in remove] + [folder for folders in stale.values() for folder in folders]
    doomed = {file for folder in folders for file in files.walk(folder)}
    return GcPlan(files.root, remove, stale, keep, by_hand, sum(files.size(file) for file in doomed))


def _with_ancestors(refs: dict[str, ArtifactRef], needed: list[str]) -> set[str]:
    """The fingerprints that are needed and in `refs`, and those of all that these were made from."""
    reached: set[str] = set()
    waiting = list(needed)
    while waiting:
        fingerprint = waiting.pop()
        if fingerprint in refs and fingerprint not in reached:
            reached.add(fingerprint)
            waiting.extend(parent.fingerprint for parent in refs[fingerprint].manifest().parents)
    return reached


def collect(plan: GcPlan) -> list[str]:
    """Remove what the plan names and is not being built at this moment.

    Returns:
        The folders that were removed, relative to the root.
    """
    files = open_files(plan.root)
    # Newest first: an artifact goes before the ones that it was made from, so none is left without parents.
    work = [
        (ref.fingerprint, (ref.path,)) for ref in sorted(plan.remove, key=lambda ref: ref.round, reverse=True)
    ] + list(plan.stale.items())
    return [folder for fingerprint, folders in work for folder in _remove(files, fingerprint, folders)]


def _remove(files: LocalFiles | RemoteFiles, fingerprint: str, folders: tuple[str, ...]) -> tuple[str, ...]:
    lock_file = lock_path(files.scratch(), fingerprint)
    with explain(f"locking {lock_file}"):
        make_folder(lock_file.parent)
        lock = FileLock(lock_file)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return ()
    try:
        for folder in folders:
            # The manifest first: an artifact that is half removed is not a finished one.
            files.remove(f"{folder}/{MANIFEST}")
            files.remove(folder)
    finally:
        lock.release()
    return folders
