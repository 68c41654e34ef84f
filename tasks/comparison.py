"""The task at a comparison's end: its tables and plots, beside the artifacts, in Prefect's UI and on the terminal."""

from base64 import b64encode

from prefect import task
from prefect.artifacts import create_image_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages.comparison_report import print_report, write_report
from grpo_pipeline.store import ArtifactRef
from tasks.guard import publishing
from tasks.keys import artifact_key


@task(name="show_comparison", cache_policy=NO_CACHE, persist_result=False)
def show_comparison(config: RunConfig, comparison: ArtifactRef) -> None:
    """Write tables and plots, publish them and print the tables."""
    report = write_report(config, comparison)
    print_report(config, report)
    with publishing("the comparison"):
        create_markdown_artifact(report.text, key=artifact_key(config.name, "comparison"))
        for name, image in report.images.items():
            picture = b64encode(image).decode()
            key = artifact_key(config.name, f"comparison-{name.removesuffix('.png')}")
            create_image_artifact(f"data:image/png;base64,{picture}", key=key)
