"""What a comparison leaves for people in the run's folder: tables and plots, all drawn from its artifact."""

from collections.abc import Mapping

import polars as pl

from grpo_pipeline.config import START, RunConfig
from grpo_pipeline.evaluation.comparison import TestedClaim, judge_claims
from grpo_pipeline.stages.run import Run
from grpo_pipeline.store import ArtifactRef

FOLDER = "comparison"


def write_report(config: RunConfig, comparison: ArtifactRef) -> list[TestedClaim]:
    """Write ``comparison/``: results.md, comparison.csv, steps.csv and the plots. Returns the claims' verdicts."""
    from grpo_pipeline.report.comparison import comparison_markdown
    from grpo_pipeline.report.comparison_plots import draw_comparison

    files = Run(config).store.files
    table, steps = comparison.read("comparison"), comparison.read("comparison_steps")
    claims = judge_claims(table, config.comparison.claims)
    titles = variant_titles(config)
    text = comparison_markdown(table, claims, titles, config.comparison.seeds)
    files.write(f"{FOLDER}/results.md", text.encode())
    for name, frame in (("comparison", table), ("steps", steps)):
        files.write(f"{FOLDER}/{name}.csv", frame.write_csv().encode())
    for name, image in draw_comparison(table, steps, titles, _shown(config, table)).items():
        files.write(f"{FOLDER}/{name}", image)
    return claims


def variant_titles(config: RunConfig) -> Mapping[str, str]:
    """Variant -> its name for people."""
    return {START: "starting policy"} | {name: one.title for name, one in config.comparison.variants.items()}


def _shown(config: RunConfig, table: pl.DataFrame) -> list[str]:
    return list(config.comparison.highlights or table["variant"].unique(maintain_order=True).to_list()[:8])
