"""Metrics that add up: every one is a [sum, count] pair on the device, divided once an optimizer step.

Averages of micro-batch averages would depend on how the step was cut; sums and counts do not, and they cost
no device synchronisation until the step is over.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

Metrics = dict[str, Tensor]
"""Name -> (2,) detached tensor [sum, count]."""


def mean_of(values: Tensor, counted: Tensor | None = None) -> Tensor:
    """(2,) [sum, count] of `values` (any shape), over the elements where the bool tensor `counted` is true."""
    values = values.detach()
    if counted is None:
        counted = torch.ones_like(values, dtype=torch.bool)
    # where, not a product: an infinite value at an element that does not count must not turn the sum into NaN.
    total = torch.where(counted, values, 0).sum()
    return torch.stack([total, counted.sum().to(total.dtype)])


def add_metrics(parts: Iterable[Metrics]) -> Metrics:
    """The parts of several micro-batches or ranks, added up by name."""
    total: Metrics = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total


def metric_means(total: Metrics) -> dict[str, float]:
    """Name -> sum / count; a metric that nothing counted for is left out."""
    if not total:
        return {}
    sums = torch.stack([value.double() for value in total.values()]).cpu()  # one transfer for all
    return {name: (s / n).item() for name, (s, n) in zip(total, sums, strict=True) if n > 0}
