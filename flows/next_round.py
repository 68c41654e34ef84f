"""One more round of a run, whatever its number: what a schedule starts every night.

python -m flows.next_round --config configs/quickstart.toml
"""

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed

from flows.command import main
from flows.rl_round import rl_round
from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages import schedule
from grpo_pipeline.stages.rounds import Round
from tasks.stages import STAGES


@flow(name="next-round", flow_run_name="{config.name}-next")
def next_round(config: RunConfig) -> Round | State[None]:
    """Make the round after the newest finished one; `rounds` does not limit it.

    A run that finds another one at work, or that starts late and has been overtaken by one, ends at once in the
    state ``Skipped``, whose message says why.
    """
    outcome = schedule.next_round(STAGES, config, rl_round, due=flow_run.scheduled_start_time)
    if outcome.made is None:
        return Completed(name="Skipped", message=outcome.message)
    return outcome.made


if __name__ == "__main__":
    main(next_round)
