"""What stands above the charts and below them as plain HTML: key figures, and all figures as tables."""

from collections.abc import Sequence
from typing import Any, TypedDict

from grpo_pipeline.report.current import Described
from grpo_pipeline.report.evidence import Evidence
from grpo_pipeline.report.series import others_figures


class Tile(TypedDict):
    """A key figure: its value in the newest round, and in the first where there are several."""

    label: str
    value: str
    first: str | None
    note: str


class FigureTable(TypedDict):
    """A table of texts; the first column names the rows."""

    title: str
    columns: list[str]
    rows: list[list[str]]


_TILES = (
    ("policy", "accuracy", "accuracy on held-out problems"),
    ("prm", "auc", "reward model, AUC of steps"),
    ("prm", "solution_auc_min", "reward model, AUC of solutions"),
    ("labels", "hard_label_accuracy", "step labels that are true"),
)
_SUBJECTS = {"policy": "Policy", "prm": "Reward model", "labels": "Step labels"}


def standfirst(artifacts: Sequence[Described], evidence: Evidence) -> str:
    """One sentence on what the run is made of."""
    problems, solutions = evidence.problems, evidence.solutions
    made = max((manifest.created for _, manifest in artifacts), default="")
    rounds = sorted({ref.round for ref, _ in artifacts})
    sources = ", ".join(problems["source"].unique(maintain_order=True).head(3).to_list())
    parts = []
    if problems.height:
        parts.append(f"{problems.height:,} problems ({sources})")
    if solutions.height:
        parts.append(f"{solutions.height:,} solutions of {evidence.steps.height:,} steps")
    if len(rounds) > 1:
        parts.append(f"rounds {rounds[0]} to {rounds[-1]}")
    text = ", ".join(parts) or f"{len(artifacts)} artifacts"
    return f"{text}; newest artifact of {made[:16].replace('T', ' ')}." if made else f"{text}."


def tiles(charts: dict[str, Any], evidence: Evidence) -> list[Tile]:
    """Key figures that the run has."""
    made: list[Tile] = []
    for subject, metric, label in _TILES:
        rows = [
            row
            for row in charts["figures"]
            if (row["subject"], row["metric"]) == (subject, metric) and row["value"] is not None
        ]
        if not rows or (metric == "solution_auc_min" and any(tile["label"].endswith("steps") for tile in made)):
            continue
        first, last = rows[0], rows[-1]
        spread = f" ± {1.96 * last['se']:.3f}" if last["se"] else ""
        what = {"policy": "problems", "prm": "solutions" if "solution" in metric else "steps", "labels": "steps"}[
            subject
        ]
        made.append(
            {
                "label": label,
                "value": f"{last['value']:.3f}",
                "first": f"{first['value']:.3f}" if len(rows) > 1 else None,
                "note": f"round {last['round']}{spread}, {last['n']:,} {what}",
            }
        )
    labelled = evidence.steps["soft"].count()
    if labelled:
        made.append({"label": "labelled steps", "value": f"{labelled:,}", "first": None, "note": "in all rounds"})
    seconds = sum(row["seconds"] for row in charts["costs"])
    tokens = sum(row["tokens"] for row in charts["costs"])
    took = f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"
    made.append({"label": "work", "value": took, "first": None, "note": f"{tokens:,} tokens"})
    return made


def figure_tables(figures: Sequence[dict[str, Any]], artifacts: Sequence[Described]) -> list[FigureTable]:
    """Every figure, a table for each subject with one column a round; and what `evaluate-prm` measured."""
    tables: list[FigureTable] = []
    for subject, title in _SUBJECTS.items():
        rows = [row for row in figures if row["subject"] == subject]
        if rows:
            rounds = sorted({row["round"] for row in rows})
            values = {(row["metric"], row["round"]): row for row in rows}
            tables.append(
                {
                    "title": title,
                    "columns": ["figure", *(f"round {number}" for number in rounds)],
                    "rows": [
                        [metric.replace("_", " "), *(_cell(values.get((metric, number))) for number in rounds)]
                        for metric in dict.fromkeys(row["metric"] for row in rows)
                    ],
                }
            )
    others = others_figures(artifacts)
    for model in dict.fromkeys(row["model"] for row in others):
        rows = [row for row in others if row["model"] == model]
        sets = list(dict.fromkeys(row["set"] for row in rows))
        values = {(row["figure"], row["set"]): row | {"se": None} for row in rows}
        tables.append(
            {
                "title": f"Reward model {model} on labelled files",
                "columns": ["figure", *sets],
                "rows": [
                    [figure.replace("_", " "), *(_cell(values.get((figure, name))) for name in sets)]
                    for figure in dict.fromkeys(row["figure"] for row in rows)
                ],
            }
        )
    return tables


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["value"] is None:
        return "–"
    return f"{row['value']:.3f}" + (f" ± {1.96 * row['se']:.3f}" if row["se"] else "")
