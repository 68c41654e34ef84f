"""Sections of what is measured."""

from typing import Literal

from pydantic import Field

from grpo_pipeline.config.base import Fraction, NonNegativeFloat, PositiveInt, Section


class EvaluationConfig(Section):
    """What is measured on held-out problems."""

    samples: PositiveInt = Field(8, description="Rollouts of each problem; k of maj@k, pass@k and best-of-k.")
    temperature: NonNegativeFloat = Field(1.0, description="Temperature of those rollouts.")


class PrmEvaluationConfig(Section):
    """What `evaluate-prm` measures: any process reward model on files of others and on sampled solutions."""

    model: str | None = Field(None, description="Folder of the reward model; must be set for evaluate-prm.")
    form: Literal["own", "trl", "math-shepherd", "rlhflow", "qwen"] = Field(
        "own",
        description="How the model reads a solution: own, trl (token classifier), math-shepherd or rlhflow (a language "
        "model that says + or -), qwen (Qwen2.5-Math-PRM).",
    )
    files: tuple[str, ...] = Field((), description="Labelled files, each FORM:PATH, such as processbench:gsm8k.json.")
    rollouts: tuple[str, ...] = Field(
        (), description="Artifact folders with sampled, checked solutions (stage evaluate_rollouts): best-of-n, votes."
    )
    threshold: Fraction = Field(0.5, description="A step with a lower score is called wrong.")
    tune_on: str | None = Field(
        None, description="File (its name without suffix) on which another threshold is chosen; the others use it too."
    )
    neutral: Literal["good", "bad", "unlabelled"] = Field(
        "good", description="What PRM800K's neutral ratings count as."
    )
