"""One decode step of a model: its protocol, the step through transformers' own layers, and the choice of a step."""

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from grpo_pipeline.engines.cache import CacheShape, SlotCache, StepCache, TransformersStepCache
from grpo_pipeline.engines.forward import forward_logits
from grpo_pipeline.engines.llama import LlamaStep, is_supported

LayerStates = list[tuple[torch.Tensor, torch.Tensor]]


class DecodeStep(Protocol):
    """Runs one new token of each sequence through the model."""

    def __init__(self, model: Any) -> None: ...

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor, slots: SlotCache, length: int) -> torch.Tensor:
        """Logits (n, V) after `tokens` (n,) at `positions` (n,), all of them below `length`."""
        ...

    def refresh(self) -> None:
        """Take note that the model's weights may have changed; called before every call's first step."""
        ...

    def arrange(self, layers: LayerStates) -> LayerStates:
        """Prefilled keys and values in the layout that this step keeps in the slots."""
        ...


class TransformersStep:
    """The step through transformers' own layers."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor, slots: SlotCache, length: int) -> torch.Tensor:
        """See `DecodeStep`."""
        behind = torch.arange(length, device=positions.device) > positions[:, None]
        mask = torch.zeros(behind.shape, dtype=slots.shape.dtype, device=positions.device)
        mask.masked_fill_(behind, torch.finfo(slots.shape.dtype).min)
        cache = TransformersStepCache(StepCache(slots, positions, length))
        logits = forward_logits(
            self._model,
            tokens[:, None],
            cache,
            position_ids=positions[:, None],
            attention_mask=mask[:, None, None, :],
        )
        return logits[:, -1]

    def refresh(self) -> None:
        """Nothing to do: the model itself is run."""

    def arrange(self, layers: LayerStates) -> LayerStates:
        """See `DecodeStep`: as they are."""
        return layers


def cache_shape(model: Any) -> CacheShape | None:
    """Sizes of the model's keys and values; None where the fast decode cannot hold them.

    It holds full attention with one size in all layers, asked for with 4D masks and position ids.
    """
    if model.config._attn_implementation not in ("sdpa", "eager"):
        return None
    if "position_ids" not in inspect.signature(type(model).forward).parameters:
        return None
    cache = DynamicCache(config=model.config)
    forward_logits(model, torch.zeros((1, 1), dtype=torch.int64, device=model.device), cache)
    if any(type(layer) is not DynamicLayer for layer in cache.layers):
        return None
    shapes = {(layer.keys.shape, layer.values.shape, layer.keys.dtype, layer.keys.device) for layer in cache.layers}
    if len(shapes) != 1:
        return None
    keys, values, dtype, device = shapes.pop()
    return CacheShape(len(cache.layers), keys[1], keys[3], dtype, device) if keys == values else None


def choose_step(model: Any, shape: CacheShape) -> DecodeStep | None:
    """The fastest step that gives this model's own logits; None if there is none."""
    tolerance = 1e-4 if shape.dtype == torch.float32 else 0.05
    steps: list[type[DecodeStep]] = [LlamaStep, TransformersStep] if is_supported(model) else [TransformersStep]
    return next((step for step in (kind(model) for kind in steps) if agrees(model, step, shape, tolerance)), None)


def agrees(model: Any, step: DecodeStep, shape: CacheShape, tolerance: float) -> bool:
    """Whether the step gives the model's own logits, on two sequences of different length.

    A guard against architectures whose forward means something else by a mask or a position.

    Args:
        model: The model.
        step: The step to try.
        shape: The model's cache sizes.
        tolerance: Largest difference allowed, relative to the logits' largest absolute value.
    """
    vocabulary = model.config.get_text_config().vocab_size
    rows = [[(7 * i + 3) % vocabulary for i in range(6)], [(11 * i + 5) % vocabulary for i in range(3)]]
    slots = SlotCache(shape, slots=2, capacity=8)
    for row, ids in enumerate(rows):
        cache = DynamicCache(config=model.config)
        forward_logits(model, torch.tensor([ids[:-1]], device=shape.device), cache)
        states = step.arrange([(layer.keys, layer.values) for layer in cache.layers])
        slots.load(torch.tensor([row], device=shape.device), states, torch.tensor([0], device=shape.device))
    tokens = torch.tensor([ids[-1] for ids in rows], device=shape.device)
    positions = torch.tensor([len(ids) - 1 for ids in rows], device=shape.device)
    got = step(tokens, positions, slots, length=6).float()
    expected = torch.stack([_last_logits(model, ids, shape) for ids in rows]).float()
    return bool((got - expected).abs().max() <= tolerance * expected.abs().max())


def _last_logits(model: Any, ids: Sequence[int], shape: CacheShape) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.tensor([ids], device=shape.device), use_cache=False).logits
    return logits[0, -1]
