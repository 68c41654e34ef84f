"""A reward model from labelled solutions of the starting policy, or from an imported data set.

python -m flows.train_prm --config configs/quickstart.toml
python -m flows.train_prm --set prm_dataset=RUN/artifacts/imported-r0-...
"""

from prefect import flow

from flows.command import main
from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages import jobs
from grpo_pipeline.stages.run import ModelRef
from tasks.stages import STAGES


@flow(name="train-prm", flow_run_name="{config.name}")
def train_prm(config: RunConfig) -> ModelRef:
    """Build the first round's data set, or take the given one, and train on it from the starting policy."""
    return jobs.train_prm(STAGES, config)


if __name__ == "__main__":
    main(train_prm)
