"""Sections of the reward model and of the replay in its data."""

from typing import Annotated, Literal

from pydantic import Field

from grpo_pipeline.config.base import NonNegativeFloat, PositiveInt, Section
from grpo_pipeline.config.training import OptimizerConfig


class RewardModelConfig(Section):
    """Training of the reward model (METHOD: RM learning rate 2e-5)."""

    kind: Literal["prm", "orm", "pairwise"] = Field("prm", description="Step-level, outcome-level or Bradley-Terry.")
    label: Literal["soft", "hard"] = Field("soft", description="Target of the binary cross-entropy.")
    optimizer: OptimizerConfig = OptimizerConfig(lr=2e-5)
    epochs: PositiveInt = Field(2, description="Passes over the data.")
    batch_size: PositiveInt = Field(64, description="Solutions an optimizer step.")
    max_length: PositiveInt = Field(2048, description="Tokens of the longest row; longer ones are dropped, counted.")
    aggregate: Literal["min", "prod", "last", "mean"] = Field("min", description="Solution score from step scores.")
    beta_rm: NonNegativeFloat = Field(0.0, description="pairwise: weight of the language-model loss on the chosen.")


class ReplayConfig(Section):
    """Rows of earlier rounds in the refreshed reward-model set (METHOD 6)."""

    fraction: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="Share of historical rows in the refreshed training set."
    )
