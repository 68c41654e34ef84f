"""Problems to a reward model's data set: rollouts, step labels or verdicts or pairs, training rows with replay.

python -m flows.build_prm_dataset --config configs/quickstart.toml
"""

from prefect import flow

from flows.command import main
from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages import jobs
from grpo_pipeline.stages.rounds import Labelled
from tasks.stages import STAGES


@flow(name="build-prm-dataset", flow_run_name="{config.name}")
def build_prm_dataset(config: RunConfig) -> Labelled:
    """Label solutions of the starting policy, and make the rows that the configured reward model trains on."""
    return jobs.build_prm_dataset(STAGES, config)


if __name__ == "__main__":
    main(build_prm_dataset)
