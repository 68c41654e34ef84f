"""The section of step labels."""

from typing import Literal

from pydantic import Field, StrictBool

from grpo_pipeline.config.base import PositiveFraction, PositiveInt, Section
from grpo_pipeline.config.inputs import ModelConfig


class LabellingConfig(Section):
    """Math-Shepherd step labels: how many solutions, completions, and which rule."""

    problems: PositiveInt = Field(128, description="Problems whose solutions are labelled in a round.")
    rollouts: PositiveInt = Field(4, description="Solutions sampled for each of them.")
    completions: PositiveInt = Field(8, description="N, completions from each prefix.")
    schedule: Literal["brute", "first_error", "closure", "binary", "soft_adaptive"] = Field(
        "brute", description="Which prefixes are completed, and how often; brute is N for every step."
    )
    wave: PositiveInt = Field(2, description="Completions sampled at once from a prefix by the adaptive schedules.")
    interval_width: PositiveFraction = Field(0.5, description="soft_adaptive: stop when the 95% interval is narrower.")
    after_first_error: Literal["unlabelled", "zero"] = Field(
        "unlabelled", description="first_error and binary: the label of steps after the first bad one."
    )
    skip_correct: StrictBool = Field(
        False,
        description="Imply all steps of a correct solution; loses flawed-but-lucky ones, wrong for soft labels.",
    )
    splitter: str = Field(
        "line",
        description="Where steps end: line, paragraph, or a user's 'module:function' (docs/extend.md).",
    )
    truncated: Literal["not_correct", "exclude"] = Field(
        "not_correct",
        description="A completion cut off by the length limit: counts in N as not correct (as in the paper), or not.",
    )
    max_tokens: PositiveInt | None = Field(
        None, description="Tokens of a completion at most; null takes sampling.max_tokens less the prefix's."
    )
    completer: ModelConfig | None = Field(None, description="Another model as completer; null is the policy itself.")
