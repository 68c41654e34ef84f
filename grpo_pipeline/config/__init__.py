"""The configuration of a run: pydantic models, read from TOML, with overrides by dotted key.

Every section is also a parameter form in Prefect's UI, so each field carries its description and its limits.
Unknown keys, wrong types and impossible values are refused before anything starts (`load_config`).
"""

from grpo_pipeline.config.base import EMBEDDED, Section
from grpo_pipeline.config.comparison import FAST_COMPARISON, START, ClaimConfig, ComparisonConfig, VariantConfig
from grpo_pipeline.config.evaluation import EvaluationConfig, PrmEvaluationConfig
from grpo_pipeline.config.generation import EngineConfig, SamplingConfig
from grpo_pipeline.config.inputs import ModelConfig, ProblemsConfig, PromptConfig
from grpo_pipeline.config.labelling import LabellingConfig
from grpo_pipeline.config.load import load_config, parse_config
from grpo_pipeline.config.policy import DpoConfig, GrpoConfig, MethodName, PolicyConfig, PpoConfig, RewardConfig
from grpo_pipeline.config.reward_model import ReplayConfig, RewardModelConfig, TokenFormConfig
from grpo_pipeline.config.run import RunConfig, StoreConfig
from grpo_pipeline.config.training import NO_NUMBERS, LoraConfig, OptimizerConfig, TrainingConfig
from grpo_pipeline.config.variants import seed_config, variant_config
from grpo_pipeline.config.workers import WorkersConfig

__all__ = [
    "EMBEDDED",
    "FAST_COMPARISON",
    "NO_NUMBERS",
    "START",
    "ClaimConfig",
    "ComparisonConfig",
    "DpoConfig",
    "EngineConfig",
    "EvaluationConfig",
    "GrpoConfig",
    "LabellingConfig",
    "LoraConfig",
    "MethodName",
    "ModelConfig",
    "OptimizerConfig",
    "PolicyConfig",
    "PpoConfig",
    "PrmEvaluationConfig",
    "ProblemsConfig",
    "PromptConfig",
    "ReplayConfig",
    "RewardConfig",
    "RewardModelConfig",
    "RunConfig",
    "SamplingConfig",
    "Section",
    "StoreConfig",
    "TokenFormConfig",
    "TrainingConfig",
    "VariantConfig",
    "WorkersConfig",
    "load_config",
    "parse_config",
    "seed_config",
    "variant_config",
]
