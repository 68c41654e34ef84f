"""The configuration of one training of a comparison, from that of the whole."""

from grpo_pipeline.config.comparison import ComparisonConfig, variant_policy
from grpo_pipeline.config.run import RunConfig


def seed_config(config: RunConfig, seed: int) -> RunConfig:
    """The run with one of the comparison's seeds, before any variant trains."""
    return config.model_copy(update={"seed": seed})


def variant_config(config: RunConfig, name: str, seed: int) -> RunConfig:
    """The run of one variant with one seed; `policy.steps` is then a round's share of the variant's steps."""
    variant = config.comparison.variants[name]
    policy = variant_policy(config.policy, variant)
    # It is whole by itself: the variants' shares of a share of the steps would mean nothing.
    changes = {"policy": policy, "rounds": variant.rounds, "comparison": ComparisonConfig()}
    return seed_config(config, seed).model_copy(update=changes)
