"""What a flow's command does before Prefect has a part in it."""

from grpo_pipeline.config import RunConfig
from grpo_pipeline.interrupts import keeps_work_in
from grpo_pipeline.processes.calls import start_server
from grpo_pipeline.stages.inputs import check_inputs
from grpo_pipeline.stages.run import run_root


def make_ready(config: RunConfig, name: str) -> None:
    """Look for what the flow reads, and start what its stages need.

    Args:
        config: The run.
        name: The flow as `grpo-pipeline run` knows it.

    Raises:
        UserError: A file or folder is not there or is not what the flow needs.
    """
    check_inputs(config, name)
    keeps_work_in(run_root(config))
    if config.child_processes:
        start_server()  # it imports what stages need while Prefect is imported and its server starts
