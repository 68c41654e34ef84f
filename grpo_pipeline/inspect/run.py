"""`grpo-pipeline inspect RUN`: the run's artifacts in order, and its figures by round."""

from functools import cache

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grpo_pipeline.inspect.artifact import show
from grpo_pipeline.store import ArtifactRef, Store
from grpo_pipeline.store.manifest import Manifest
from grpo_pipeline.tables import read

WIDE = 100
"""Columns of a console from which on the table has its tokens."""


def in_order(store: Store) -> list[tuple[ArtifactRef, Manifest]]:
    """The artifacts of each round as the pipeline made them: by time, those of one second parents first."""
    manifests = {ref.fingerprint: (ref, ref.manifest()) for ref in store.artifacts()}

    @cache
    def depth(fingerprint: str) -> int:
        if fingerprint not in manifests:  # in another store, or removed by gc
            return 0
        return 1 + max((depth(parent.fingerprint) for parent in manifests[fingerprint][1].parents), default=0)

    return sorted(manifests.values(), key=lambda one: (one[0].round, one[1].created, depth(one[0].fingerprint)))


def show_run(store: Store, console: Console) -> None:
    """Print one row an artifact, and the evaluations with one column a round.

    Names are never broken, so that they can be copied; a narrow console goes without the tokens.
    """
    wide = console.width >= WIDE
    table = Table(title=f"{store.root}", title_justify="left")
    table.add_column("artifact", no_wrap=True, overflow="ignore")
    table.add_column("rows", overflow="fold")
    for column in ("tokens", "seconds") if wide else ("seconds",):
        table.add_column(column, justify="right", no_wrap=True)
    for ref, manifest in in_order(store):
        rows = [f"{name} {record.rows:,}" for name, record in manifest.tables.items()]
        rows += [f"model {manifest.model.content_id}"] if manifest.model else []
        name = ref.path.removeprefix("artifacts/")
        figures = [f"{manifest.tokens:,}"] if wide else []
        table.add_row(Text(name), Text(", ".join(rows)), *figures, f"{manifest.timings.seconds:,.1f}")
    console.print(table)
    evaluations = read("evaluations", store.root)
    if evaluations.is_empty():
        return
    rounds = sorted(evaluations["round"].unique().to_list())
    shown = Table(title="Figures by round", title_justify="left")
    shown.add_column("figure")
    for number in rounds:
        shown.add_column(str(number), justify="right")
    values = {(r["subject"], r["metric"], r["round"]): r["value"] for r in evaluations.iter_rows(named=True)}
    for subject, metric in dict.fromkeys((subject, metric) for subject, metric, _ in values):
        shown.add_row(Text(f"{subject} {metric}"), *(show(values.get((subject, metric, number))) for number in rounds))
    console.print(shown)
