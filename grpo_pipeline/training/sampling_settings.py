"""Settings with which no policy can sample while it is trained; told from the configuration alone."""

from grpo_pipeline.config import RunConfig
from grpo_pipeline.errors import UserError


def check_sampling(config: RunConfig, temperature: float, processes: int) -> None:
    """Refuse settings with which the policy cannot sample for its training.

    Args:
        config: The run.
        temperature: What responses are sampled at.
        processes: How many processes train together.

    Raises:
        UserError: A temperature of 0, or an engine that cannot be used.
    """
    if config.policy.method == "sft":  # learns from demonstrations
        return
    if not temperature > 0:
        raise UserError("sampling.temperature = 0 is greedy: training needs samples; use e.g. 1.0")
    if config.engine.kind == "server":
        raise UserError(
            "engine.kind = 'server' cannot sample while a policy trains: a server elsewhere is not given new weights. "
            "Use 'vllm', which runs in the training process and is, or 'transformers'"
        )
    if config.engine.kind == "vllm" and processes > 1:
        raise UserError(
            "engine.kind = 'vllm' needs training.processes = 1: vLLM in a process has a process group of its own. "
            "Use engine.kind = 'transformers' for training in several processes"
        )
