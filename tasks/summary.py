"""The tasks at a run's end: the summary file, its table in the UI and on the terminal, and the page to look at."""

from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from rich.console import Console

from grpo_pipeline.config import RunConfig
from grpo_pipeline.report.page import write_report as write_page
from grpo_pipeline.report.terminal import print_summary
from grpo_pipeline.stages import summary
from grpo_pipeline.stages.rounds import Round
from grpo_pipeline.stages.run import run_root


@task(cache_policy=NO_CACHE, persist_result=False)
def write_summary(config: RunConfig, rounds: tuple[Round, ...]) -> dict[str, Any]:
    """Write ``summary.json``, publish its tables and print them."""
    result = summary.write_summary(config, rounds)
    for part in ("rounds", "prms"):
        create_table_artifact(key=f"{config.name}-{part}".lower().replace("_", "-"), table=result[part])
    print_summary(result, run_root(config))
    return result


@task(cache_policy=NO_CACHE, persist_result=False)
def write_report(config: RunConfig, rounds: tuple[Round, ...]) -> str:
    """Write the run's ``report.html`` and print its path."""
    artifacts = [artifact for one in rounds for artifact in one.artifacts()]
    path = write_page(run_root(config), artifacts=artifacts)
    Console().print(f"Open {path} in a browser to look at the run", highlight=False, soft_wrap=True)
    return path
