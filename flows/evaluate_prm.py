"""Any process reward model on ProcessBench, PRM800K and sampled solutions.

python -m flows.evaluate_prm --set prm_evaluation.model=PATH --set prm_evaluation.form=math-shepherd \
    --set 'prm_evaluation.files=["processbench:gsm8k.json", "prm800k-steps:phase1_test.parquet"]'
"""

from prefect import flow

from flows.command import main
from grpo_pipeline.config import RunConfig
from grpo_pipeline.report.figures import print_figures
from grpo_pipeline.stages import jobs
from grpo_pipeline.store import ArtifactRef
from tasks.stages import STAGES


@flow(name="evaluate-prm", flow_run_name="{config.name}")
def evaluate_prm(config: RunConfig) -> ArtifactRef:
    """Score every labelled file and every set of rollouts, and measure them together."""
    figures = jobs.evaluate_prm(STAGES, config)
    print_figures(figures)
    return figures


if __name__ == "__main__":
    main(evaluate_prm)
