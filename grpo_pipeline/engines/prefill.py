"""Prompts' keys and values, computed once for all samples and for prompts that share a beginning.

A prompt that begins another one costs nothing: its keys and values are the first positions of the longer
one's (labelling asks for the prefixes of a solution, which nest). A beginning that all prompts share, such as
few-shot examples, is computed once for the whole call. Prompts are padded on the right, where causal
attention never looks, so no mask is needed. The last token of a prompt is left to the first decode step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from grpo_pipeline.engines.forward import forward_logits
from grpo_pipeline.models.threads import fitting_threads

_HEADER_FROM = 16
"""Tokens from which on a common beginning is worth a forward pass of its own."""

Prompt = tuple[int, ...]


@dataclass(frozen=True)
class PromptPlan:
    """Which prompts are computed.

    Attributes:
        header: Beginning that all share, computed once; may be empty.
        leaves: Distinct prompts that begin no other one, longest first.
        leaf_of: For each distinct prompt the leaf that it begins (itself, for a leaf).
    """

    header: Prompt
    leaves: tuple[Prompt, ...]
    leaf_of: dict[Prompt, Prompt]


def plan_prompts(prompts: Sequence[Prompt]) -> PromptPlan:
    """Find out what must be computed for these prompts (not empty, in any order, with repeats)."""
    ordered = sorted(set(prompts))
    leaf_of: dict[Prompt, Prompt] = {}
    following: Prompt | None = None
    # In lexicographic order a prompt that begins any other one begins the next one.
    for prompt in reversed(ordered):
        nested = following is not None and following[: len(prompt)] == prompt
        leaf_of[prompt] = leaf_of[following] if nested and following is not None else prompt
        following = prompt
    leaves = sorted(set(leaf_of.values()), key=lambda leaf: (-len(leaf), leaf))
    header: Prompt = ()
    if len(leaves) > 1:
        first, last = min(leaves), max(leaves)
        limit = min(len(leaf) for leaf in leaves) - 1
        shared = next((i for i in range(limit) if first[i] != last[i]), limit)
        header = first[:shared] if shared >= _HEADER_FROM else ()
    return PromptPlan(header, tuple(leaves), leaf_of)


class Prefill:
    """Computes leaves in batches with transformers' own cache.

    Args:
        model: The model, in evaluation mode.
        plan: What to compute.
    """

    def __init__(self, model: Any, plan: PromptPlan) -> None:
        self._model = model
        self._header = plan.header
        self._header_layers: list[tuple[torch.Tensor, torch.Tensor]] | None = None

    def compute(self, leaves: Sequence[Prompt]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values (N, heads, P - 1, head_dim) of every layer, P the longest leaf's length.

        Row i holds leaf i's first ``len(leaf) - 1`` positions; what follows them is noise.
        """
        if self._header and self._header_layers is None:
            self._header_layers = self._run([self._header], None)
        skip = len(self._header)
        return self._run([leaf[skip:-1] for leaf in leaves], self._header_layers)

    def _run(
        self, rows: Sequence[Prompt], past: list[tuple[torch.Tensor, torch.Tensor]] | None
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        longest = max(len(row) for row in rows)
        if not longest:
            return [
                (keys.expand(len(rows), -1, -1, -1), values.expand(len(rows), -1, -1, -1))
                for keys, values in past or ()
            ]
        device = self._model.device
        input_ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
        cache = DynamicCache(config=self._model.config)
        for layer, (keys, values) in enumerate(past or ()):
            cache.update(keys.expand(len(rows), -1, -1, -1), values.expand(len(rows), -1, -1, -1), layer)
        with fitting_threads([self._model], input_ids.numel()):
            forward_logits(self._model, input_ids, cache)
        return [(layer.keys, layer.values) for layer in cache.layers]
