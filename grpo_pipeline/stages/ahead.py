"""What can be refused before the first stage, and would else be refused by a later one after hours of work."""

from grpo_pipeline.config import RunConfig
from grpo_pipeline.stages.run import function_hashes
from grpo_pipeline.training.sampling_settings import check_sampling


def check_ahead(config: RunConfig) -> None:
    """Look whether a policy can be trained with the settings, and whether all that they name is there.

    Nothing of the user's is run: functions are only looked for.

    Args:
        config: The run.

    Raises:
        UserError: The policy cannot sample while it trains, or a module of a reader, a splitter or a reward, or the
            launcher's configuration, is not found.
    """
    check_sampling(config, config.sampling.temperature, config.training.processes)
    function_hashes(config, "problems.reader", "labelling.splitter", "policy.reward.custom")
    if config.training.processes > 1:
        from grpo_pipeline.training.launch import launcher_file

        launcher_file(config.training)
