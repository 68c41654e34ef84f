"""`grpo-pipeline inspect ARTIFACT`: everything about one artifact on one page."""

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from grpo_pipeline.counts import in_words
from grpo_pipeline.inspect.figures import key_figures
from grpo_pipeline.inspect.solutions import render_solution, sample_solutions
from grpo_pipeline.schemas import TABLES
from grpo_pipeline.settings_text import toml_lines, toml_value
from grpo_pipeline.store import ArtifactRef, Manifest
from grpo_pipeline.store.lineage import LineageNode, lineage

_CELL = 60


def show_artifact(ref: ArtifactRef, console: Console, rows: int) -> None:
    """Print the artifact's head, lineage, tables with columns and figures, and sample rows.

    Args:
        ref: The artifact.
        console: Where to.
        rows: Solutions, or rows of tables that hold no solutions, to show.
    """
    manifest = ref.manifest()
    console.print(Text(f"{manifest.stage}, round {manifest.round}", "bold"))
    console.print(
        Text(
            f"{ref}\nmade {manifest.created} by grpo-pipeline {manifest.code_version}, seed {manifest.seed}, "
            f"{manifest.tokens:,} tokens, {manifest.timings.seconds:,.1f} s of work"
        )
    )
    if manifest.model is not None:
        size = sum(file.bytes for file in manifest.model.files)
        console.print(Text(f"model {manifest.model.content_id}, {size:,} bytes in {len(manifest.model.files)} files"))
    _show_records(manifest, console)
    console.print(lineage_tree(lineage(ref)))
    for table, record in manifest.tables.items():
        frame = ref.read(table, "quick")
        console.print(_columns(table, record.rows, len(record.shards), frame))
        figures = key_figures(table, frame)
        if figures:
            console.print(_pairs(f"Key figures of {table}", {name: show(value) for name, value in figures.items()}))
    solutions = sample_solutions(ref, rows)
    for solution in solutions:
        console.print(render_solution(solution))
    if not solutions and rows:
        for table in ref.tables:
            console.print(_sample(table, ref.scan(table).head(rows).collect()))


def _show_records(manifest: Manifest, console: Console) -> None:
    """Settings, counts and receipt."""
    for model in manifest.outside_models:
        console.print(Text(f"made with model {model} from outside the store"))
    if manifest.settings:
        console.print(Text("Settings", "italic"))
        console.print(Text("\n".join(f"  {line}" if line else "" for line in toml_lines(manifest.settings)) + "\n"))
    if manifest.counts:
        console.print(_pairs("Counts", {in_words(name): show(count) for name, count in manifest.counts.items()}))
    if manifest.receipt:
        console.print(_pairs("Receipt", {name.replace("_", " "): show(n) for name, n in manifest.receipt.items()}))


def lineage_tree(node: LineageNode) -> Tree:
    """The artifact's origins as a tree; what is shown already is not unfolded again."""
    tree = Tree("Lineage", style="bold")
    _grow(tree, node, set())
    return tree


def _grow(tree: Tree, node: LineageNode, shown: set[str]) -> None:
    again = node.fingerprint in shown and bool(node.parents)
    shown.add(node.fingerprint)
    text = Text(f"{node.stage}, round {node.round} ", "default")
    text.append(node.fingerprint[:12], "dim")
    if node.store is not None:
        text.append(f" in another store, {node.store}")
    elif node.manifest is None:
        text.append(" removed", "red")
    else:
        parts = [f"{name} {record.rows:,}" for name, record in node.manifest.tables.items()]
        parts += [f"model {node.manifest.model.content_id}"] if node.manifest.model else []
        # Models from outside the store have no artifact; they stand in the settings of the stage that used them.
        parts += [f"outside model {model}" for model in node.manifest.outside_models]
        text.append(f" {', '.join(parts)}", "dim")
    text.append(" (see above)" if again else "")
    branch = tree.add(text)
    for parent in () if again else node.parents:
        _grow(branch, parent, shown)


def show(value: object) -> str:
    """A value as text: whole numbers with commas, others with four digits, "-" for None, lists as TOML has them."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, bool) or not isinstance(value, int | str):
        return toml_value(value)
    return f"{value:,}" if isinstance(value, int) else value


def _pairs(title: str, values: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("name")
    table.add_column("value", overflow="fold")
    for name, value in values.items():
        table.add_row(Text(name), Text(value))
    return table


def _columns(name: str, rows: int, shards: int, frame: pl.DataFrame) -> Table:
    spec = TABLES[name]
    table = Table(title=f"{name}: {rows:,} rows in {shards} files. {spec.description}", title_justify="left")
    for column in ("column", "type", "nulls", "what it is"):
        table.add_column(column, justify="right" if column == "nulls" else "left")
    described = spec.describe()
    for column in frame.columns:
        what = described.get(column, "a further column of the stage that wrote it")
        key = " (key)" if column in spec.key else ""
        table.add_row(Text(column + key), str(frame[column].dtype), f"{frame[column].null_count():,}", Text(what))
    return table


def _sample(name: str, frame: pl.DataFrame) -> Table:
    table = Table(title=f"First rows of {name}", title_justify="left")
    for column in frame.columns:
        table.add_column(column, overflow="fold")
    for row in frame.iter_rows():
        table.add_row(*(Text(_short(value)) for value in row))
    return table


def _short(value: object) -> str:
    text = show(value)
    return text if len(text) <= _CELL else f"{text[: _CELL - 3]}..."
