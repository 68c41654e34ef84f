"""Which artifacts of a run a report is about: of a stage that ran several times, the newest that still fits."""

from collections.abc import Sequence

from grpo_pipeline.store import ArtifactRef, Store
from grpo_pipeline.store.manifest import Manifest

Described = tuple[ArtifactRef, Manifest]
"""An artifact and its manifest."""


def current_artifacts(store: Store) -> list[Described]:
    """The newest artifact of each stage, round and kind of parents, without those whose parents are not among them.

    A run folder keeps what earlier configurations made. Rounds that were made from a replaced policy belong to
    another story than the one a report tells, so they are left out.

    Returns:
        In the store's order: round, stage, fingerprint.

    Raises:
        UserError: There is no run in the folder.
    """
    described = [(ref, ref.manifest()) for ref in store.artifacts()]
    newest: dict[object, Described] = {}
    for ref, manifest in sorted(described, key=lambda pair: pair[1].created):
        newest[_kind(ref, manifest)] = (ref, manifest)
    kept = {ref.fingerprint for ref, _ in newest.values()}
    present = {ref.fingerprint for ref, _ in described}
    while True:
        # A parent that was removed, or lives in another store, speaks neither for nor against its child.
        stale = {
            ref.fingerprint
            for ref, manifest in newest.values()
            if ref.fingerprint in kept
            and any(parent.fingerprint in present - kept for parent in manifest.parents if parent.store is None)
        }
        if not stale:
            return [pair for pair in described if pair[0].fingerprint in kept]
        kept -= stale


def describe(refs: Sequence[ArtifactRef]) -> list[Described]:
    """Given artifacts with their manifests, each once, in the order of a store."""
    unique = sorted(set(refs), key=lambda ref: (ref.round, ref.stage, ref.fingerprint))
    return [(ref, ref.manifest()) for ref in unique]


def _kind(ref: ArtifactRef, manifest: Manifest) -> object:
    if ref.stage in ("imported", "labelled_scores"):
        return ref.fingerprint  # one for each file, all of one round
    return ref.stage, ref.round, tuple((parent.stage, parent.round) for parent in manifest.parents)
