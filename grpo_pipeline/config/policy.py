"""Sections of policy training: the reward, the six methods and their own settings."""

from typing import Literal, Self

from pydantic import Field, StrictBool, model_validator

from grpo_pipeline.config.base import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section
from grpo_pipeline.config.training import OptimizerConfig


class RewardConfig(Section):
    """The reward of a rollout: weighted parts, each its own column."""

    rule_weight: NonNegativeFloat = Field(1.0, description="Weight of the checker's verdict (1 correct, 0 otherwise).")
    model_weight: NonNegativeFloat = Field(
        0.0, description="Weight of the reward model's solution score in the outcome reward."
    )
    format_weight: NonNegativeFloat = Field(0.0, description="Weight of the format reward (1 if an answer is stated).")
    length_weight: NonNegativeFloat = Field(
        0.0,
        description="Weight of the length penalty, 0 up to length_target, then falling to -1 at max_tokens.",
    )
    length_target: PositiveInt = Field(192, description="Tokens up to which length costs nothing.")
    custom: dict[str, NonNegativeFloat] = Field(
        default_factory=dict, description="User rewards: 'module:function' -> weight (docs/extend.md)."
    )
    truncated: Literal["zero", "null"] = Field(
        "zero", description="Rule reward of a cut-off response: 0, or null (left out of the group)."
    )


class GrpoConfig(Section):
    """GRPO's own settings (Shao et al. 2024; METHOD 3 and 4)."""

    supervision: Literal["outcome", "process"] = Field("process", description="Outcome or process supervision.")
    beta: NonNegativeFloat = Field(0.04, description="Weight of the KL to the reference; 0 loads no reference.")
    unbiased_kl: StrictBool = Field(
        False,
        description="Multiply the KL by the ratio, for the unbiased gradient of the reverse KL (TRL's default); "
        "off is the paper's.",
    )
    epsilon: PositiveFloat = Field(0.2, description="Clip range of the ratio.")
    epsilon_high: PositiveFloat | None = Field(None, description="Upper clip range; null is epsilon (clip-higher).")
    loss_type: Literal["grpo", "bnpo", "dapo", "dr_grpo"] = Field("grpo", description="How token losses are averaged.")
    scale_rewards: StrictBool = Field(True, description="Divide by the group's standard deviation.")
    advantage_eps: NonNegativeFloat = Field(1e-4, description="Added to the standard deviation, as in TRL.")
    step_mean: StrictBool = Field(False, description="Process supervision: mean instead of sum over the steps to come.")
    outcome_weight: NonNegativeFloat = Field(
        0.0, description="Process supervision: weight of the outcome advantage added to the steps'."
    )
    ratio: Literal["token", "sequence"] = Field("token", description="Importance ratio per token, or GSPO's sequence.")
    mask_truncated: StrictBool = Field(False, description="Leave cut-off rollouts out of the loss.")
    importance_correction: Literal["none", "truncate", "mask"] = Field(
        "none",
        description="Correction of sampler vs trainer log-probabilities, by truncated or masked weights.",
    )
    importance_cap: PositiveFloat = Field(2.0, description="Largest sampler-to-trainer weight.")


class PpoConfig(Section):
    """PPO's own settings."""

    epsilon: PositiveFloat = Field(0.2, description="Clip range of the ratio.")
    value_epsilon: PositiveFloat | None = Field(0.2, description="Clip range of the value; null for none.")
    gamma: Fraction = Field(1.0, description="Discount.")
    lam: Fraction = Field(0.95, description="GAE's lambda.")
    kl_coef: NonNegativeFloat = Field(0.04, description="eta: weight of the per-token KL in the reward.")
    kl_target: PositiveFloat | None = Field(
        None, description="Target of the KL summed over a response (nats), for the adaptive coefficient; null is fixed."
    )
    kl_horizon: PositiveInt = Field(10_000, description="Horizon of the adaptive coefficient, in rollouts.")
    value_weight: PositiveFloat = Field(0.5, description="Weight of the critic's loss.")
    critic_lr: PositiveFloat = Field(1e-5, description="Learning rate of the critic.")
    critic_warmup: NonNegativeInt = Field(0, description="Exploration steps that train the critic alone.")
    normalise_rewards: StrictBool = Field(
        True, description="Subtract the rewards' running mean and divide by their running standard deviation."
    )
    reward_clip: PositiveFloat | None = Field(5.0, description="Clip of the normalised reward; null for none.")
    ptx_weight: NonNegativeFloat = Field(0.0, description="lambda_ptx: weight of the demonstrations' likelihood.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kl_target is not None and self.kl_coef == 0:
            raise ValueError("kl_target needs kl_coef > 0: the adaptive coefficient is multiplied up from it")
        return self


class DpoConfig(Section):
    """DPO's own settings."""

    beta: PositiveFloat = Field(0.1, description="Strength of the implicit KL.")
    length_normalised: StrictBool = Field(False, description="Mean instead of sum of token log-ratios.")
    pairs_per_problem: PositiveInt = Field(4, description="Preference pairs at most for each problem.")


MethodName = Literal["sft", "rft", "online_rft", "dpo", "ppo", "grpo"]


class PolicyConfig(Section):
    """Training of the policy: one loop, six methods (METHOD 5)."""

    method: MethodName = Field("grpo", description="Which of the six methods.")
    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-6)
    steps: PositiveInt = Field(30, description="Exploration steps (online methods) or optimizer steps (offline).")
    problems_per_step: PositiveInt = Field(16, description="Problems in an exploration step.")
    rollouts_per_problem: PositiveInt = Field(64, description="G, rollouts of each problem.")
    updates_per_step: PositiveInt = Field(1, description="mu, optimizer steps on each exploration step's rollouts.")
    epochs: PositiveInt = Field(1, description="Offline methods: passes over the data.")
    kl_limit: PositiveFloat | None = Field(
        None, description="Online methods: stop when the KL to the reference exceeds it."
    )
    grpo: GrpoConfig = GrpoConfig()
    ppo: PpoConfig = PpoConfig()
    dpo: DpoConfig = DpoConfig()
    reward: RewardConfig = RewardConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.method == "grpo" and self.rollouts_per_problem < 2:
            raise ValueError(
                "rollouts_per_problem must be at least 2 for grpo: a group of one rollout has no advantage"
            )
        return self
