"""The configuration of a whole run."""

from typing import Self

from pydantic import Field, StrictBool, ValidationError, model_validator

from grpo_pipeline.config.base import NonNegativeInt, PositiveInt, Section, Url
from grpo_pipeline.config.comparison import ComparisonConfig, variant_policy
from grpo_pipeline.config.evaluation import EvaluationConfig, PrmEvaluationConfig
from grpo_pipeline.config.explain import explain_errors
from grpo_pipeline.config.generation import EngineConfig, SamplingConfig
from grpo_pipeline.config.inputs import ModelConfig, ProblemsConfig, PromptConfig
from grpo_pipeline.config.labelling import LabellingConfig
from grpo_pipeline.config.policy import PolicyConfig
from grpo_pipeline.config.reward_model import ReplayConfig, RewardModelConfig
from grpo_pipeline.config.training import TrainingConfig
from grpo_pipeline.config.workers import WorkersConfig


class StoreConfig(Section):
    """How artifacts are written."""

    rows_per_group: PositiveInt = Field(16384, description="Rows of a Parquet row group.")
    problems_per_shard: PositiveInt = Field(64, description="Problems in one shard, the unit that a restart keeps.")


class RunConfig(Section):
    """A whole run."""

    name: str = Field(
        "quickstart", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=128, description="Folder of the run."
    )
    root: Url = Field("runs", min_length=1, description="Where runs are stored: a folder or an fsspec URL.")
    seed: NonNegativeInt = Field(0, description="Seed that every other seed is derived from.")
    rounds: NonNegativeInt = Field(2, description="RL rounds (I in Algorithm 1); 0 only builds the first PRM.")
    child_processes: StrictBool = Field(
        True,
        description="Flows run each stage that uses a model in a child process: its memory is free after it, and it "
        "ends with the flow, however that ends.",
    )
    model: ModelConfig = ModelConfig()
    problems: ProblemsConfig = ProblemsConfig(count=1024)
    prompt: PromptConfig = PromptConfig()
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = EngineConfig()
    labelling: LabellingConfig = LabellingConfig()
    reward_model: RewardModelConfig = RewardModelConfig()
    policy: PolicyConfig = PolicyConfig()
    training: TrainingConfig = TrainingConfig()
    replay: ReplayConfig = ReplayConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    comparison: ComparisonConfig = ComparisonConfig()
    prm_dataset: str | None = Field(
        None,
        description="For train-prm: folder of an artifact with rows to train on, such as an imported one; left out, "
        "solutions of the starting policy are sampled and labelled.",
    )
    prm_evaluation: PrmEvaluationConfig = PrmEvaluationConfig()
    store: StoreConfig = StoreConfig()
    workers: WorkersConfig = WorkersConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        hard_only = self.labelling.schedule not in ("brute", "soft_adaptive") or self.labelling.skip_correct
        if self.reward_model.kind == "prm" and self.reward_model.label == "soft" and hard_only:
            raise ValueError(
                "reward_model.label = 'soft' needs labelling.schedule 'brute' or 'soft_adaptive' without skip_correct: "
                "other schedules stop at the first success and give hard labels only; set reward_model.label = 'hard'"
            )
        reward = self.policy.reward
        if reward.length_weight > 0 and reward.length_target >= self.sampling.max_tokens:
            raise ValueError(
                f"policy.reward.length_target = {reward.length_target} is not below sampling.max_tokens = "
                f"{self.sampling.max_tokens}, so no response would be penalised; lower it, or set length_weight = 0"
            )
        process = self.policy.method == "grpo" and self.policy.grpo.supervision == "process"
        if process and self.reward_model.kind != "prm":
            raise ValueError(
                f"reward_model.kind = {self.reward_model.kind!r} scores whole solutions, and policy.grpo.supervision = "
                "'process' needs step scores; set policy.grpo.supervision = 'outcome' with policy.reward.model_weight"
            )
        return self

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        for model in (self.model, self.labelling.completer):
            if model is not None:
                self.workers.check_places(model.device, self.engine.gpus or 1)  # reward models are here in any case
        return self

    @model_validator(mode="after")
    def _check_claims(self) -> Self:
        samples = self.evaluation.samples
        for claim in self.comparison.claims:
            k = int(claim.metric.lstrip("majps") or 1) if claim.metric.startswith(("maj", "pass")) else 1
            if k > samples or (k & (k - 1) and k != samples):
                largest = claim.metric.rstrip("0123456789")
                raise ValueError(
                    f"comparison.claims: {claim.metric!r} is not measured with evaluation.samples = {samples}, but the "
                    f"powers of two up to that, and itself; name one of those, or {largest!r} for the largest"
                )
        return self

    @model_validator(mode="after")
    def _check_variants(self) -> Self:
        for name, variant in self.comparison.variants.items():
            where = f"comparison.variants.{name}"
            try:
                policy = variant_policy(self.policy, variant).model_dump(mode="json")
            except ValidationError as error:
                raise ValueError("; ".join(explain_errors(error, PolicyConfig, f"{where}.policy."))) from None
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            try:
                # What other sections demand of a policy holds for each variant's.
                RunConfig.model_validate(self.model_dump(mode="json", exclude={"comparison"}) | {"policy": policy})
            except ValidationError as error:
                raise ValueError(f"{where}: {'; '.join(explain_errors(error, RunConfig))}") from None
        return self
