"""Sections of text generation: how responses are sampled, and what generates them."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, model_validator

from grpo_pipeline.config.base import NonNegativeFloat, PositiveFraction, PositiveInt, Section, Url


class SamplingConfig(Section):
    """How responses are sampled."""

    temperature: NonNegativeFloat = Field(1.0, description="Divides the logits; 0 is greedy.")
    top_p: PositiveFraction = Field(1.0, description="Nucleus mass; 1 keeps everything.")
    max_tokens: PositiveInt = Field(256, description="Response tokens at most.")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="Strings that end a response, besides EOS."
    )


class EngineConfig(Section):
    """What generates text."""

    kind: Literal["transformers", "vllm", "server"] = Field("transformers", description="The engine.")
    max_batch: PositiveInt = Field(256, description="Sequences decoded at once (transformers, vllm).")
    decode: Literal["fast", "plain"] = Field(
        "fast",
        description="transformers: our continuous batching decode, or the plain loop it is tested against.",
    )
    gpu_memory_utilization: PositiveFraction = Field(
        0.9, description="vllm: share of the device's memory that it may take."
    )
    tensor_parallel_size: PositiveInt = Field(1, description="vllm: GPUs that one model is spread over.")
    enforce_eager: StrictBool = Field(
        False, description="vllm: neither compile nor capture graphs: starts sooner, samples slower."
    )
    max_model_len: PositiveInt | None = Field(None, description="Context limit; null takes the model's.")
    base_url: Url | None = Field(None, description="server: address of an OpenAI-compatible server's /v1.")
    concurrency: PositiveInt = Field(64, description="server: requests under way at once.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "server" and not self.base_url:
            raise ValueError("engine.kind = 'server' needs base_url, e.g. http://127.0.0.1:8000/v1")
        return self

    @property
    def gpus(self) -> int:
        """GPUs that its model is spread over, where it computes on GPUs; 0 where a server has the model."""
        if self.kind == "server":
            return 0
        return self.tensor_parallel_size if self.kind == "vllm" else 1
