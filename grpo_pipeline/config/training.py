"""Sections that every trainer shares."""

from typing import Literal

from pydantic import Field, StrictBool

from grpo_pipeline.config.base import DecayRate, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section


class OptimizerConfig(Section):
    """One optimizer's settings (AdamW)."""

    lr: PositiveFloat = Field(description="Peak learning rate.")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="After warm-up.")
    warmup_steps: NonNegativeInt = Field(0, description="Steps of linear warm-up.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Decoupled weight decay.")
    betas: tuple[DecayRate, DecayRate] = Field((0.9, 0.999), description="Adam's moment decay rates, below 1.")
    max_grad_norm: PositiveFloat | None = Field(1.0, description="Gradient norm above which it is clipped.")


class LoraConfig(Section):
    """Low-rank adapters instead of full weights (peft)."""

    rank: PositiveInt = Field(16, description="Rank of the adapters.")
    alpha: PositiveFloat = Field(32.0, description="Scale; the update is multiplied by alpha / rank.")
    target_modules: tuple[str, ...] | Literal["all-linear"] = Field("all-linear", description="Adapted layers.")


Tracker = Literal["tensorboard", "trackio", "wandb"]

NO_NUMBERS = frozenset({"checkpoint_every", "processes", "launcher", "report_to", "report_project"})
"""Settings of `TrainingConfig` that change nothing in what is learnt: they enter no fingerprint."""


class TrainingConfig(Section):
    """What every trainer shares."""

    tokens_per_microbatch: PositiveInt = Field(
        16384, description="Token budget of one forward and backward; halved on out-of-memory."
    )
    packing: StrictBool = Field(True, description="Padding-free batches; off is the plain padded path.")
    fused_layers: StrictBool = Field(
        True, description="Packed Llama-family models on a CPU: our fused layers; off is transformers' own."
    )
    checkpoint_every: NonNegativeInt = Field(10, description="Optimizer steps between checkpoints; 0 for none.")
    gradient_checkpointing: StrictBool = Field(False, description="Recompute activations in the backward pass.")
    lora: LoraConfig | None = Field(None, description="Train adapters instead of all weights.")
    processes: PositiveInt = Field(
        1, description="Processes that train together, one a GPU; more than one are started by `accelerate launch`."
    )
    launcher: str = Field(
        "ddp",
        description="How they hold the weights: ddp (each whole), fsdp2 (cut over them), or the path of an accelerate "
        "configuration (configs/accelerate).",
    )
    report_to: tuple[Tracker, ...] = Field(
        (), description="Where metrics go besides the metrics table, each an installed library (docs/training.md)."
    )
    report_project: str = Field("grpo-pipeline", description="Project under which trackio and wandb keep the run.")
