"""The main job: iterative RL with a reward model that is refreshed after each round (METHOD 6, Algorithm 1).

python -m flows.iterate_rl --config configs/quickstart.toml
"""

from prefect import flow

from flows.build_prm_dataset import label_round
from flows.command import main
from flows.evaluate import measure_round
from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages.rounds import Round
from grpo_pipeline.store import ArtifactRef
from tasks import stages
from tasks.summary import write_report, write_summary


@flow(name="iterate-rl", flow_run_name="{config.name}")
def iterate_rl(config: RunConfig) -> list[Round]:
    """Round 0 measures, labels and trains the first PRM; each further one trains the policy and refreshes it."""
    problems = stages.make_problems(config)
    rounds: list[Round] = []
    for number in range(config.rounds + 1):
        rounds.append(rl_round(config, number, problems, tuple(rounds)))
    write_summary(config, tuple(rounds))
    write_report(config, tuple(rounds))
    return rounds


@flow(name="rl-round", flow_run_name="{config.name}-round-{number}")
def rl_round(config: RunConfig, number: int, problems: ArtifactRef, earlier: tuple[Round, ...]) -> Round:
    """One round: improve the policy, label its solutions, refresh the reward model, measure both."""
    if not earlier:
        policy = start = stages.base_policy(config)
    else:
        start = earlier[-1].reward_model
        policy = stages.train_policy(config, number, problems, earlier[-1].policy, start)
    history = tuple(one.labelled.rows for one in earlier)
    labelled = label_round(config, number, problems, policy, history)
    reward_model = stages.train_reward_model(config, number, labelled.dataset, start)
    made = Round(
        number=number,
        problems=problems,
        policy=policy,
        labelled=labelled,
        reward_model=reward_model,
        measured=measure_round(
            config, number, problems, policy, labelled, reward_model, earlier[0].measured if earlier else None
        ),
    )
    stages.finish_round(config, made)
    return made


if __name__ == "__main__":
    main(iterate_rl)
