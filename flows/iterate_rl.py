"""The main job: iterative RL with a reward model that is refreshed after each round (METHOD 6, Algorithm 1).

python -m flows.iterate_rl --config configs/quickstart.toml
"""

from prefect import flow

from flows.command import main
from flows.rl_round import rl_round
from grpo_pipeline.config import RunConfig
from grpo_pipeline.report.terminal import print_run
from grpo_pipeline.stages import loop
from grpo_pipeline.stages.rounds import Round
from tasks.stages import STAGES


@flow(name="iterate-rl", flow_run_name="{config.name}")
def iterate_rl(config: RunConfig) -> list[Round]:
    """Round 0 measures, labels and trains the first PRM; each further one trains the policy and refreshes it."""
    rounds = loop.iterate_rl(STAGES, config, rl_round)
    print_run(config)
    return list(rounds)


if __name__ == "__main__":
    main(iterate_rl)
