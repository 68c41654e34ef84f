"""Sections of what a run starts from: the model, the problems and how a question becomes a prompt."""

from typing import Literal, Self

from pydantic import Field, StrictBool, field_validator, model_validator

from grpo_pipeline.config.base import EMBEDDED, NonNegativeInt, PositiveInt, Section

READERS = ("auto", "gsm8k", "math500", "svamp", "columns")
"""Forms of problem records that need no function of the user's."""


class ModelConfig(Section):
    """The policy to start from."""

    path: str = Field(
        EMBEDDED, min_length=1, description="Local model folder, Hugging Face id, or 'embedded' for data/tiny."
    )
    revision: str | None = Field(None, description="Revision of a Hugging Face id; a commit makes runs repeatable.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Weights' type; auto is bfloat16 on a GPU that has it, else float32."
    )
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$", description="auto, cpu, cuda or cuda:N.")
    trust_remote_code: StrictBool = Field(False, description="Run code that the model folder brings. Leave it off.")


class ProblemsConfig(Section):
    """Where problems come from and how they are split."""

    source: str = Field(
        "synthetic",
        description="'synthetic' (generated), a .parquet/.jsonl/.json file, a folder, or a Hugging Face data set id "
        "(id:configuration where it has several).",
    )
    reader: str = Field(
        "auto",
        description="Form of the records: auto (looks at the first record's columns), gsm8k, math500, svamp, columns, "
        "or a user's 'module:function' (docs/extend.md).",
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="For reader 'columns': our name -> the source's column (question, gold_answer, gold_solution).",
    )
    hub_split: str = Field("train", description="Split of a Hugging Face data set.")
    count: PositiveInt | None = Field(
        None, description="Problems at most for training; required for synthetic, null takes all of a file."
    )
    eval_source: str | None = Field(
        None, description="Source of evaluation problems; null splits them off the training source."
    )
    eval_count: PositiveInt = Field(200, description="Held-out evaluation problems.")
    seed: NonNegativeInt = Field(0, description="Seed of generation and of the split.")
    min_steps: PositiveInt = Field(2, description="Synthetic: operations of the shortest problem.")
    max_steps: PositiveInt = Field(4, description="Synthetic: operations of the longest problem.")
    decontaminate: StrictBool = Field(
        True, description="Drop training problems whose normalised text matches an evaluation problem."
    )

    @field_validator("reader")
    @classmethod
    def _known_reader(cls, reader: str) -> str:
        if reader not in READERS and ":" not in reader:
            raise ValueError(f"{reader!r} is none of {', '.join(READERS)}; your own is named as 'module:function'")
        return reader

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_steps > self.max_steps:
            raise ValueError(f"min_steps ({self.min_steps}) is above max_steps ({self.max_steps})")
        if self.source == "synthetic" and self.count is None:
            raise ValueError("count is required for source 'synthetic': say how many training problems to make")
        return self


class PromptConfig(Section):
    """How a question becomes a prompt."""

    template: str = Field("{question}\n", description="Text around one question; {question} stands for it.")
    examples: NonNegativeInt = Field(
        0, description="Worked examples from the training split put before the question (few-shot)."
    )
    chat: StrictBool = Field(False, description="Wrap the prompt with the tokenizer's chat template.")
    system: str | None = Field(None, description="System message, with chat.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.template.count("{question}") != 1:
            raise ValueError(f"template must hold {{question}} exactly once, not: {self.template!r}")
        if self.system is not None and not self.chat:
            raise ValueError("system needs chat = true")
        return self
