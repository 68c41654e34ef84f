"""What is imported before a stage asks for it; a module that is not installed is passed over.

Only names: nothing here is imported by this room itself.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterable

IN_SERVER = (
    "torch",
    "transformers",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "accelerate",
    "peft",
    "math_verify",
    "safetensors.torch",
    "rich.progress",
    "grpo_pipeline.config",
)
"""Starts no thread and asks for no GPU when imported, so the server imports it once and forks."""

IN_WORKER = (
    "polars",
    "pyarrow.parquet",
    "grpo_pipeline.stages.rollouts",
    "grpo_pipeline.stages.labels",
    "grpo_pipeline.stages.models",
    "grpo_pipeline.stages.evaluation",
    "grpo_pipeline.labelling.label",
    "grpo_pipeline.models.scoring",
    "grpo_pipeline.training.policy",
    "grpo_pipeline.training.reward_model",
)
"""The rest (polars and pyarrow start threads): imported by the worker that waits for the next call."""


def preload(modules: Iterable[str]) -> None:
    """Import what is there of these."""
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def fill_caches() -> None:
    """Have transformers build its table of weight names now: 0.26 s that each fork would spend on its first model."""
    if "transformers" in sys.modules:
        with contextlib.suppress(ImportError, AttributeError):  # it is no part of the public interface
            module = importlib.import_module("transformers.conversion_mapping")
            module.get_checkpoint_conversion_mapping("llama")
