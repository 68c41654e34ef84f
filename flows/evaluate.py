"""Held-out evaluation of a model: accuracy, greedy accuracy, maj@k and pass@k.

python -m flows.evaluate --config configs/quickstart.toml --set model.path=PATH
"""

from prefect import flow

from flows.command import main
from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages import jobs
from grpo_pipeline.stages.rounds import Measured
from tasks.stages import STAGES


@flow(name="evaluate", flow_run_name="{config.name}")
def evaluate(config: RunConfig) -> Measured:
    """Measure the configured model on the held-out problems."""
    return jobs.evaluate(STAGES, config)


if __name__ == "__main__":
    main(evaluate)
