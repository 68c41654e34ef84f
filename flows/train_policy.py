"""One round of policy training by the configured method, with the reward model it needs.

python -m flows.train_policy --config configs/quickstart.toml --set policy.method=grpo
"""

from prefect import flow

from flows.command import main
from flows.train_prm import train_prm
from grpo_pipeline.config import RunConfig
from grpo_pipeline.rewards import needs_reward_model
from grpo_pipeline.stages.run import ModelRef
from tasks import stages


@flow(name="train-policy", flow_run_name="{config.name}")
def train_policy(config: RunConfig) -> ModelRef:
    """Train the starting policy once; a reward model is made first where the method asks for one."""
    reward_model = train_prm(config) if needs_reward_model(config.policy) else None
    problems = stages.make_problems(config)
    return stages.train_policy(config, 1, problems, stages.base_policy(config), reward_model)


if __name__ == "__main__":
    main(train_policy)
