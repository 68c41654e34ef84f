"""What a comparison leaves for people in the run's folder: tables and plots, all drawn from its artifact."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl
from rich.console import Console

from grpo_pipeline.config import START, RunConfig
from grpo_pipeline.evaluation.comparison import TestedClaim, judge_claims
from grpo_pipeline.report.comparison import claims_table, comparison_markdown, costs_table, figures_table
from grpo_pipeline.stages.run import Run, run_root
from grpo_pipeline.store import ArtifactRef

FOLDER = "comparison"


@dataclass(frozen=True)
class ComparisonReport:
    """What was written.

    Attributes:
        table: The `comparison` table.
        claims: The claims' verdicts.
        text: Both as Markdown.
        images: File name -> PNG.
    """

    table: pl.DataFrame
    claims: list[TestedClaim]
    text: str
    images: dict[str, bytes]


def write_report(config: RunConfig, comparison: ArtifactRef) -> ComparisonReport:
    """Write ``comparison/`` into the run's folder: results.md, comparison.csv, steps.csv and the plots."""
    from grpo_pipeline.report.comparison_plots import draw_comparison

    files = Run(config).store.files
    table, steps = comparison.read("comparison"), comparison.read("comparison_steps")
    claims = judge_claims(table, config.comparison.claims)
    titles = variant_titles(config)
    text = comparison_markdown(table, claims, titles, config.comparison.seeds)
    shown = config.comparison.highlights or table["variant"].unique(maintain_order=True).to_list()[:8]
    images = draw_comparison(table, steps, titles, shown)
    files.write(f"{FOLDER}/results.md", text.encode())
    for name, frame in (("comparison", table), ("steps", steps)):
        files.write(f"{FOLDER}/{name}.csv", frame.write_csv().encode())
    for name, image in images.items():
        files.write(f"{FOLDER}/{name}", image)
    return ComparisonReport(table, claims, text, images)


def print_report(config: RunConfig, report: ComparisonReport) -> None:
    """Print the tables, and where everything lies."""
    console = Console()
    console.print(figures_table(report.table, variant_titles(config)))
    console.print(costs_table(report.table, variant_titles(config)))
    console.print(claims_table(report.claims))
    console.print(f"Tables and plots lie in {run_root(config)}/{FOLDER}/", highlight=False)


def variant_titles(config: RunConfig) -> Mapping[str, str]:
    """Variant -> its name for people."""
    return {START: "starting policy"} | {name: one.title for name, one in config.comparison.variants.items()}
