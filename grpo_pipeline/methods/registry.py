"""The six methods by name."""

from collections.abc import Callable

from grpo_pipeline.config import MethodName, PolicyConfig
from grpo_pipeline.methods.base import Method
from grpo_pipeline.methods.dpo import Dpo
from grpo_pipeline.methods.grpo import Grpo
from grpo_pipeline.methods.online_rft import OnlineRft
from grpo_pipeline.methods.ppo import Ppo
from grpo_pipeline.methods.rft import Rft
from grpo_pipeline.methods.sft import Sft

METHODS: dict[MethodName, Callable[[PolicyConfig], Method]] = {
    "sft": lambda config: Sft(),
    "rft": lambda config: Rft(),
    "online_rft": lambda config: OnlineRft(),
    "dpo": lambda config: Dpo(config.dpo),
    "ppo": lambda config: Ppo(config.ppo),
    "grpo": lambda config: Grpo(config.grpo),
}
"""Method name -> how it is made from the policy's configuration."""


def make_method(config: PolicyConfig) -> Method:
    """The configured method."""
    return METHODS[config.method](config)
