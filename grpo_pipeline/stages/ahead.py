"""What can be refused before the first stage, and would else be refused by a later one after hours of work."""

from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages.run import function_hashes


def check_ahead(config: RunConfig) -> None:
    """Look whether all that a training of the policy names from outside the configuration is there.

    Nothing of the user's is run: functions are only looked for.

    Args:
        config: The run.

    Raises:
        UserError: A module of a reader, a splitter or a reward is not found, or the launcher's configuration is not.
    """
    function_hashes(config, "problems.reader", "labelling.splitter", "policy.reward.custom")
    if config.training.processes > 1:
        from grpo_pipeline.training.launch import launcher_file

        launcher_file(config.training)
