"""The section of `compare-methods`: which methods, how often, and which claims are put to the test."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from grpo_pipeline.config.base import NonNegativeInt, PositiveInt, Section
from grpo_pipeline.config.policy import PolicyConfig

START = "start"
"""Name of the untrained starting policy among the variants of a comparison."""

FAST_COMPARISON = (
    "name=compare_methods_fast",
    "comparison.seeds=[1, 2]",
    "problems.eval_count=48",
    "labelling.problems=32",
    "policy.steps=2",
    "evaluation.samples=8",
)
"""What `compare-methods --fast` changes: the same in small. Its figures are noise; it shows that everything runs."""


class VariantConfig(Section):
    """One way of training the policy: what it changes in [policy], and in how many rounds."""

    title: str = Field(description="Its name in tables and plots.")
    rounds: PositiveInt = Field(
        1, description="Rounds that share policy.steps; before each, the reward model is trained or refreshed."
    )
    policy: dict[str, Any] = Field(default_factory=dict, description="Settings of [policy] that it changes.")


class ClaimConfig(Section):
    """A statement that one variant beats another, tested on held-out problems."""

    claim: str = Field(description="The statement in words.")
    better: str = Field(description="Variant that is said to have the larger figure; NAME@R is it after round R.")
    worse: str = Field(description="Variant that it is compared with.")
    metric: str = Field(
        "accuracy",
        pattern=r"^(accuracy|greedy|mean_tokens|kl|(maj|pass)([1-9][0-9]*)?)$",
        description="The figure: accuracy, greedy, mean_tokens, kl, majK or passK; maj and pass are those at the "
        "largest K, evaluation.samples.",
    )


class ComparisonConfig(Section):
    """Several ways of training the same starting policy, side by side, for `compare-methods`."""

    seeds: tuple[NonNegativeInt, ...] = Field(
        (1, 2, 3), description="Run seeds; each has its own problems, samples and reward model."
    )
    variants: dict[str, VariantConfig] = Field(
        default_factory=dict, description="Name -> a way of training; compare-methods needs at least one."
    )
    claims: tuple[ClaimConfig, ...] = Field((), description="What is tested between them.")
    highlights: tuple[str, ...] = Field(
        (), description="Variants that the plots show, at most eight and in this order; none shows the first eight."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different numbers, at least one; got {list(self.seeds)}")
        for name in self.variants:
            if name == START or "@" in name:
                raise ValueError(f"variants: {name!r} cannot be a variant's name ('{START}' and '@' are taken)")
        known = {START, *self.variants}
        for claim in self.claims:
            if claim.better == claim.worse:
                raise ValueError(f"claims: {claim.claim!r} compares {claim.better!r} with itself")
            for name in (claim.better, claim.worse):
                self._check_named(name, known)
        unknown = [name for name in self.highlights if name not in known]
        if unknown or len(self.highlights) > 8:
            raise ValueError(
                f"highlights: at most eight of {', '.join(sorted(known))}; got {', '.join(self.highlights)}"
            )
        return self

    def _check_named(self, name: str, known: set[str]) -> None:
        variant, at, number = name.partition("@")
        if variant not in known:
            raise ValueError(f"claims: there is no variant {name!r}; there are: {', '.join(sorted(known))}")
        between = self.variants[variant].rounds - 1 if variant in self.variants else 0
        if at and number not in [str(round) for round in range(1, between + 1)]:
            has = f"NAME@R with R from 1 to {between}" if between else "the last alone, without @"
            raise ValueError(f"claims: {name!r}: {variant!r} is measured after {between + 1} rounds: {has}")


def variant_policy(policy: PolicyConfig, variant: VariantConfig) -> PolicyConfig:
    """[policy] with a variant's changes, for one of its rounds.

    Raises:
        ValueError: The changes do not fit, or the steps cannot be shared evenly over the rounds.
    """
    changed = PolicyConfig.model_validate(_merge(policy.model_dump(mode="json"), variant.policy))
    if changed.steps % variant.rounds:
        raise ValueError(f"policy.steps = {changed.steps} cannot be shared evenly over {variant.rounds} rounds")
    return changed.model_copy(update={"steps": changed.steps // variant.rounds})


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
