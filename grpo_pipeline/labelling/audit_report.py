"""The audit as a person reads it on the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from grpo_pipeline.labelling.audit import AuditReport

_STYLE = {"note": "cyan", "warning": "yellow", "error": "bold red"}


def render_audit(report: AuditReport) -> RenderableType:
    """Labels by position, the figures, then what deserves a look."""
    positions = Table(title="Labels by step position")
    for column in report.by_position[0] if report.by_position else ():
        positions.add_column(column, justify="right")
    for row in report.by_position:
        positions.add_row(*(_show(value) for value in row.values()))
    figures = Table(title="Figures", show_header=False)
    groups: dict[str, Mapping[str, Any]] = {
        "rows": report.rows,
        "undecided": report.undecided,
        "false zeros": report.impossible,
        "without answer": report.extraction,
        "correlation of label with": report.correlation,
        "duplicates": report.duplicates,
        "train and eval overlap": report.overlap,
        "oracle": report.oracle or {},
    }
    for group, values in groups.items():
        for name, value in values.items():
            figures.add_row(group, name.replace("_", " "), _show(value))
            group = ""  # noqa: PLW2901 - a group's name stands on its first row only
    lines: list[RenderableType] = [positions, figures]
    for finding in report.findings:
        lines.append(Text.assemble((finding.severity, _STYLE[finding.severity]), f" {finding.code}: {finding.message}"))
        lines += [Text(f"    {example}") for example in finding.examples]
    if not report.findings:
        lines.append(Text("Nothing suspicious was found."))
    return Group(*lines)


def _show(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}"
