"""One round of policy training by the configured method, with the reward model it needs.

python -m flows.train_policy --config configs/quickstart.toml --set policy.method=grpo
"""

from prefect import flow

from flows.command import main
from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages import jobs
from grpo_pipeline.stages.run import ModelRef
from tasks.stages import STAGES


@flow(name="train-policy", flow_run_name="{config.name}")
def train_policy(config: RunConfig) -> ModelRef:
    """Train the starting policy once; a reward model is made first where the method asks for one."""
    return jobs.train_policy(STAGES, config)


if __name__ == "__main__":
    main(train_policy)
