"""Sections of the reward model and of the replay in its data."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.config.base import DecayRate, NonNegativeFloat, PositiveFloat, PositiveInt, Section
from grpo_pipeline.config.training import OptimizerConfig

Token = Annotated[str, Field(min_length=1)]


class TokenFormConfig(Section):
    """A PRM that says a good or a bad token, as Math-Shepherd's does; each must be one token of the tokenizer."""

    good: Token = Field("+", description="What it says of a good step.")
    bad: Token = Field("-", description="What it says of a bad step.")
    tag: Token | None = Field(
        None,
        description="Token put after every step, where it is read (Math-Shepherd's is ки); null reads the step's "
        "own last token.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.good == self.bad:
            raise ValueError(f"good and bad are both {self.good!r}; they must be two tokens")
        return self


class RewardModelConfig(Section):
    """Training of the reward model (METHOD: RM learning rate 2e-5)."""

    kind: Literal["prm", "orm", "pairwise"] = Field("prm", description="Step-level, outcome-level or Bradley-Terry.")
    label: Literal["soft", "hard"] = Field("soft", description="Target of the binary cross-entropy.")
    optimizer: OptimizerConfig = OptimizerConfig(lr=2e-5)
    epochs: PositiveInt = Field(2, description="Passes over the data.")
    refresh_epochs: PositiveInt | None = Field(
        None, description="Passes over the data in the rounds after the first; null is epochs."
    )
    refresh_lr: PositiveFloat | None = Field(
        None,
        description="Peak learning rate in the rounds after the first, which go on from a trained model; null is "
        "optimizer.lr.",
    )
    batch_size: PositiveInt = Field(64, description="Solutions an optimizer step.")
    max_length: PositiveInt = Field(2048, description="Tokens of the longest row; longer ones are dropped, counted.")
    aggregate: Literal["min", "prod", "last", "mean"] = Field("min", description="Solution score from step scores.")
    beta_rm: NonNegativeFloat = Field(0.0, description="pairwise: weight of the language-model loss on the chosen.")
    pairs_per_problem: PositiveInt = Field(4, description="pairwise: preference pairs at most for each problem.")
    token_form: TokenFormConfig | None = Field(
        None, description="prm: no new head, but two tokens of the language model; null is a scalar head."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.token_form is not None and self.kind != "prm":
            raise ValueError(f"token_form is a PRM's: set kind = 'prm', or leave token_form out for {self.kind!r}")
        return self

    def of_round(self, round: int) -> Self:
        """The settings that hold in a round, with nothing in them that does not."""
        resolved: dict[str, object] = {"refresh_epochs": None, "refresh_lr": None}
        if round > 0:
            resolved["epochs"] = self.refresh_epochs or self.epochs
            resolved["optimizer"] = self.optimizer.model_copy(update={"lr": self.refresh_lr or self.optimizer.lr})
        return self.model_copy(update=resolved)


class ReplayConfig(Section):
    """Rows of earlier rounds in the refreshed reward-model set (METHOD 6)."""

    fraction: DecayRate = Field(0.1, description="Share of historical rows in the refreshed training set.")
