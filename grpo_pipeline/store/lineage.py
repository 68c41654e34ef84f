"""Where an artifact comes from: its parents, their parents, back to what has none."""

from dataclasses import dataclass

from grpo_pipeline.store.artifact import ArtifactRef, read_manifest
from grpo_pipeline.store.filesystem import Files, open_files
from grpo_pipeline.store.manifest import MANIFEST, Manifest, ParentRecord


@dataclass(frozen=True)
class LineageNode:
    """An artifact in a lineage.

    Attributes:
        stage: Its stage.
        round: Its round.
        fingerprint: Its fingerprint.
        path: Its folder, relative to its store's root.
        store: Root of its store where that is another one; such a parent is named and not opened.
        manifest: Its manifest, None where it lies in another store or is gone.
        parents: What it was made from, in order.
    """

    stage: str
    round: int
    fingerprint: str
    path: str
    store: str | None
    manifest: Manifest | None
    parents: tuple["LineageNode", ...]


def lineage(ref: ArtifactRef) -> LineageNode:
    """The tree of an artifact's origins; an ancestor that is reached twice is the same node.

    Raises:
        UserError: A manifest on the way is broken.
    """
    record = ParentRecord(fingerprint=ref.fingerprint, stage=ref.stage, round=ref.round, path=ref.path)
    return _node(open_files(ref.root), record, {})


def _node(files: Files, record: ParentRecord, known: dict[str, LineageNode]) -> LineageNode:
    if record.fingerprint in known:
        return known[record.fingerprint]
    manifest = None
    if record.store is None and files.exists(f"{record.path}/{MANIFEST}"):
        manifest = read_manifest(files, record.path)
    parents = tuple(_node(files, parent, known) for parent in manifest.parents) if manifest else ()
    node = LineageNode(record.stage, record.round, record.fingerprint, record.path, record.store, manifest, parents)
    known[record.fingerprint] = node
    return node


def render_lineage(node: LineageNode) -> str:
    """The tree as text, the artifact first; what was shown before is not unfolded again."""
    lines: list[str] = []
    _render(node, "", "", lines, set())
    return "\n".join(lines)


def _render(node: LineageNode, lead: str, indent: str, lines: list[str], shown: set[str]) -> None:
    again = node.fingerprint in shown and bool(node.parents)
    shown.add(node.fingerprint)
    lines.append(f"{lead}{_describe(node)}{' (see above)' if again else ''}")
    if again:
        return
    for i, parent in enumerate(node.parents):
        last = i == len(node.parents) - 1
        lead, below = ("└─ ", "   ") if last else ("├─ ", "│  ")
        _render(parent, indent + lead, indent + below, lines, shown)


def _describe(node: LineageNode) -> str:
    text = f"{node.stage}, round {node.round} [{node.fingerprint[:12]}]"
    if node.store is not None:
        return f"{text}: in another store, {node.store}"
    if node.manifest is None:
        return f"{text}: removed"
    parts = [f"{name} {record.rows:,} rows" for name, record in node.manifest.tables.items()]
    if node.manifest.model is not None:
        parts.append(f"model {node.manifest.model.content_id}")
    return f"{text}: {', '.join(parts)}" if parts else text
