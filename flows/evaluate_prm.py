"""Any process reward model on ProcessBench, PRM800K and sampled solutions.

python -m flows.evaluate_prm --set prm_evaluation.model=PATH --set prm_evaluation.form=math-shepherd \
    --set 'prm_evaluation.files=["processbench:gsm8k.json", "prm800k-steps:phase1_test.parquet"]'
"""

import polars as pl
from prefect import flow

from flows.command import main
from grpo_pipeline.config import RunConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.store import ArtifactRef
from tasks import stages


@flow(name="evaluate-prm", flow_run_name="{config.name}")
def evaluate_prm(config: RunConfig) -> ArtifactRef:
    """Score every labelled file and every set of rollouts, and measure them together."""
    prm = stages.open_prm(config)
    solutions = [stages.import_labelled(config, entry) for entry in config.prm_evaluation.files]
    solutions += [open_rollouts(folder) for folder in config.prm_evaluation.rollouts]
    few_shot = config.prm_evaluation.form == "own" and config.prompt.examples > 0
    problems = stages.make_problems(config) if few_shot else None
    scored = tuple((ref, stages.score_labelled(config, ref, prm, problems)) for ref in solutions)
    figures = stages.evaluate_labelled(config, prm, scored)
    show(figures)
    return figures


def open_rollouts(folder: str) -> ArtifactRef:
    """An artifact with checked rollouts."""
    from grpo_pipeline.inspect.opening import open_artifact

    ref = open_artifact(folder)
    if "steps" not in ref.tables:
        raise UserError(f"{folder}: prm_evaluation.rollouts needs artifacts with steps, such as evaluate_rollouts")
    return ref


def show(figures: ArtifactRef) -> None:
    """Print one row a figure and one column a set."""
    from rich.console import Console

    from grpo_pipeline.report.figures import figures_by_set

    rows = figures.read("evaluations").with_columns(
        pl.col("metric").str.split_exact("/", 1).struct.rename_fields(["set", "figure"]).alias("_")
    )
    Console().print(figures_by_set(rows.unnest("_")))


if __name__ == "__main__":
    main(evaluate_prm)
