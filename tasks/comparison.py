"""The task at a comparison's end: its files, its tables in the UI, and the same on the terminal."""

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from rich.console import Console

from grpo_pipeline.config import RunConfig
from grpo_pipeline.report.comparison import claims_table, comparison_markdown, comparison_table
from grpo_pipeline.stages.comparison_report import FOLDER, variant_titles, write_report
from grpo_pipeline.stages.run import run_root
from grpo_pipeline.store import ArtifactRef


@task(cache_policy=NO_CACHE, persist_result=False)
def write_comparison(config: RunConfig, comparison: ArtifactRef) -> None:
    """Write tables and plots beside the artifacts, publish the tables and print them."""
    claims = write_report(config, comparison)
    table, titles = comparison.read("comparison"), variant_titles(config)
    create_markdown_artifact(
        key=f"{config.name}-comparison".lower().replace("_", "-"),
        markdown=comparison_markdown(table, claims, titles, config.comparison.seeds),
    )
    console = Console()
    console.print(comparison_table(table, titles))
    console.print(claims_table(claims))
    console.print(f"Tables and plots lie in {run_root(config)}/{FOLDER}/", highlight=False)
