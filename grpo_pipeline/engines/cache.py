"""Keys and values of the sequences being decoded: one preallocated buffer, one slot a sequence.

Slots 0..n-1 are in use, so that every step works on views of the buffer and nothing is concatenated. A new
token's keys and values are written at the sequence's own position; what lies behind it is masked.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_GROWTH = 64


@dataclass(frozen=True)
class CacheShape:
    """Sizes of a model's keys and values: the same in all layers."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class SlotCache:
    """Keys and values (layers, 2, slots, heads, capacity, head_dim).

    Args:
        shape: The model's sizes.
        slots: Sequences at most at once.
        capacity: Positions to begin with; `reserve` grows it.
    """

    def __init__(self, shape: CacheShape, slots: int, capacity: int) -> None:
        self.shape = shape
        self.slots = slots
        self.capacity = 0
        self.data = torch.empty(0)
        self.reserve(capacity)

    def reserve(self, length: int) -> None:
        """Make room for `length` positions; growing copies, so it grows by half at least."""
        if length <= self.capacity:
            return
        capacity = -(-max(length, self.capacity * 3 // 2) // _GROWTH) * _GROWTH
        s = self.shape
        # Zeros: masked positions get weight 0, but 0 times the NaN of uninitialised memory would be NaN.
        data = torch.zeros((s.layers, 2, self.slots, s.heads, capacity, s.head_dim), dtype=s.dtype, device=s.device)
        if self.capacity:
            data[:, :, :, :, : self.capacity] = self.data
        self.data, self.capacity = data, capacity

    def load(self, slots: torch.Tensor, layers: list[tuple[torch.Tensor, torch.Tensor]], rows: torch.Tensor) -> None:
        """Copy prompts' keys and values into slots.

        Args:
            slots: (K,) slots to fill.
            layers: For each layer keys and values (N, heads, P, head_dim) of N prefilled prompts.
            rows: (K,) which of the N goes into each slot.
        """
        for layer, pair in enumerate(layers):
            for part, source in enumerate(pair):
                self.data[layer, part, slots, :, : source.shape[2]] = source[rows]

    def move(self, targets: torch.Tensor, sources: torch.Tensor, length: int) -> None:
        """Copy the first `length` positions of some slots over others."""
        self.data[:, :, targets, :, :length] = self.data[:, :, sources, :, :length]

    def write_index(self, positions: torch.Tensor) -> torch.Tensor:
        """(n x heads,) rows of a layer's flattened buffer where the tokens at `positions` (n,) go."""
        n, heads = len(positions), self.shape.heads
        rows = torch.arange(n * heads, device=positions.device).view(n, heads) * self.capacity
        return (rows + positions[:, None]).view(-1)

    def write(self, layer: int, index: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put one new token a sequence: keys and values (n, heads, head_dim), contiguous or not."""
        flat = self.data[layer].view(2, -1, self.shape.head_dim)
        flat[0].index_copy_(0, index, keys.reshape(-1, self.shape.head_dim))
        flat[1].index_copy_(0, index, values.reshape(-1, self.shape.head_dim))

    def read(self, layer: int, n: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views (n, heads, length, head_dim) of the first n slots' keys and values."""
        both = self.data[layer, :, :n, :, :length]
        return both[0], both[1]


@dataclass
class StepCache:
    """What one decode step of n sequences needs from a `SlotCache`."""

    slots: SlotCache
    positions: torch.Tensor
    length: int
    index: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.index = self.slots.write_index(self.positions)

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the step's keys and values, and give all those so far."""
        self.slots.write(layer, self.index, keys, values)
        return self.slots.read(layer, len(self.positions), self.length)


class TransformersStepCache(Cache):  # type: ignore[misc]
    """A `StepCache` in the form that transformers' attention layers call."""

    def __init__(self, step: StepCache) -> None:
        super().__init__(layers=[_StepLayer(step, layer) for layer in range(step.slots.shape.layers)])


class _StepLayer(CacheLayerMixin):  # type: ignore[misc]
    is_sliding = False

    def __init__(self, step: StepCache, layer: int) -> None:
        super().__init__()
        self._step = step
        self._layer = layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the buffer is there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._step.update(self._layer, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._step.length, 0

    def get_seq_length(self) -> int:
        return self._step.length - 1

    def get_max_length(self) -> int:
        return -1
