"""A reward model from labelled solutions of the starting policy.

python -m flows.train_prm --config configs/quickstart.toml
"""

from prefect import flow

from flows.build_prm_dataset import label_round
from flows.command import main
from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages.run import ModelRef
from tasks import stages


@flow(name="train-prm", flow_run_name="{config.name}")
def train_prm(config: RunConfig) -> ModelRef:
    """Build the first round's data set and train the reward model on it, from the starting policy."""
    problems = stages.make_problems(config)
    policy = stages.base_policy(config)
    labelled = label_round(config, 0, problems, policy, ())
    return stages.train_reward_model(config, 0, labelled.dataset, policy)


if __name__ == "__main__":
    main(train_prm)
