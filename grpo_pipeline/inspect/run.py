"""`grpo-pipeline inspect RUN`: the run's artifacts in order, and its figures by round."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grpo_pipeline.inspect.artifact import show
from grpo_pipeline.store import Store
from grpo_pipeline.tables import read


def show_run(store: Store, console: Console) -> None:
    """Print one row an artifact, and the evaluations with one column a round."""
    table = Table(title=f"{store.root}", title_justify="left")
    for column in ("artifact", "rows", "tokens", "seconds"):
        table.add_column(column, justify="left" if column in ("artifact", "rows") else "right", overflow="fold")
    for ref in store.artifacts():
        manifest = ref.manifest()
        rows = [f"{name} {record.rows:,}" for name, record in manifest.tables.items()]
        rows += [f"model {manifest.model.content_id}"] if manifest.model else []
        name = ref.path.removeprefix("artifacts/")
        table.add_row(Text(name), Text(", ".join(rows)), f"{manifest.tokens:,}", f"{manifest.timings.seconds:,.1f}")
    console.print(table)
    figures = read("evaluations", store.root)
    if figures.is_empty():
        return
    rounds = sorted(figures["round"].unique().to_list())
    shown = Table(title="Figures by round", title_justify="left")
    shown.add_column("figure")
    for number in rounds:
        shown.add_column(str(number), justify="right")
    values = {(r["subject"], r["metric"], r["round"]): r["value"] for r in figures.iter_rows(named=True)}
    for subject, metric in dict.fromkeys((subject, metric) for subject, metric, _ in values):
        shown.add_row(Text(f"{subject} {metric}"), *(show(values.get((subject, metric, number))) for number in rounds))
    console.print(shown)
