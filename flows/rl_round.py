"""One round of the loop as a flow of its own, so that it stands by itself in the UI.

`iterate_rl` and `next_round` call it.
"""

from prefect import flow

from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages import loop
from grpo_pipeline.stages.rounds import Round
from grpo_pipeline.store import ArtifactRef
from tasks.rounds import show_rounds
from tasks.stages import STAGES


@flow(name="rl-round", flow_run_name="{config.name}-round-{number}")
def rl_round(config: RunConfig, number: int, problems: ArtifactRef, previous: Round | None) -> Round:
    """Improve the policy, label its solutions, refresh the reward model, measure both, and show how the run stands."""
    made = loop.rl_round(STAGES, config, number, problems, previous)
    show_rounds(config, made)
    return made
