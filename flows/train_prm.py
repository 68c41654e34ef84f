"""A reward model from labelled solutions of the starting policy, or from an imported data set.

python -m flows.train_prm --config configs/quickstart.toml
python -m flows.train_prm --set prm_dataset=RUN/artifacts/imported-r0-...
"""

from prefect import flow

from flows.build_prm_dataset import label_round
from flows.command import main
from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages.run import ModelRef
from tasks import stages


@flow(name="train-prm", flow_run_name="{config.name}")
def train_prm(config: RunConfig) -> ModelRef:
    """Build the first round's data set, or take the given one, and train on it from the starting policy."""
    policy = stages.base_policy(config)
    if config.prm_dataset is not None:
        return stages.train_reward_model(config, 0, stages.open_dataset(config, policy), policy)
    problems = stages.make_problems(config)
    labelled = label_round(config, 0, problems, policy, ())
    return stages.train_reward_model(config, 0, labelled.dataset, policy)


if __name__ == "__main__":
    main(train_prm)
