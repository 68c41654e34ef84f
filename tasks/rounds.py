"""At a round's end: how the run stands, as a table, a picture and a link on the flow run's page."""

from base64 import b64encode
from pathlib import Path
from typing import cast

from prefect.artifacts import create_image_artifact, create_link_artifact, create_table_artifact
from prefect.variables import Variable

from grpo_pipeline.config import RunConfig
from grpo_pipeline.report.curves import plot_rounds
from grpo_pipeline.stages.history import rounds_up_to
from grpo_pipeline.stages.rounds import Round
from grpo_pipeline.stages.run import run_root
from grpo_pipeline.stages.summary import round_table, summarise
from tasks.guard import publishing
from tasks.keys import artifact_key

REPORTS_URL = "grpo_pipeline_reports_url"
"""Prefect variable: where a web server shows the store root, such as http://host:8000; unset for links to files."""


def show_rounds(config: RunConfig, last: Round) -> None:
    """Publish all rounds up to this one: a row each, the learning curves, and where the report lies.

    No task, so that these stand at the top of the flow run's artifacts.
    """
    with publishing(f"round {last.number}"):
        rounds = rounds_up_to(config, last)
        summary = summarise(config, rounds)
        after = f"{config.name} after round {last.number}"
        create_table_artifact(round_table(summary), key=artifact_key(config.name, "rounds"), description=after)
        picture = b64encode(plot_rounds(rounds, summary)).decode()
        create_image_artifact(
            f"data:image/png;base64,{picture}", key=artifact_key(config.name, "learning-curves"), description=after
        )
        create_link_artifact(
            report_link(config), link_text="report.html", key=artifact_key(config.name, "report"), description=after
        )


def report_link(config: RunConfig) -> str:
    """Where the run's report can be opened."""
    base = cast(str | None, Variable.get(REPORTS_URL, default=None))
    if base:
        return f"{base.rstrip('/')}/{config.name}/report.html"
    root = run_root(config)
    return f"{root}/report.html" if "://" in root else Path(root, "report.html").expanduser().absolute().as_uri()
