"""One optimizer step: micro-batches forward and backward, adding up to the whole step's loss.

Every trainer (policy by any method, reward model of any kind) ends here. A loss function is given a
micro-batch and returns its part of the step's loss; parts are summed, never averaged, so the cut into
micro-batches changes nothing but memory and speed.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from grpo_pipeline.methods.base import MethodLoss
from grpo_pipeline.methods.metrics import Metrics, add_metrics, metric_means
from grpo_pipeline.training.batching import Row
from grpo_pipeline.training.layouts import MicroBatch
from grpo_pipeline.training.optimizer import Optimizer
from grpo_pipeline.training.runner import Runner, is_out_of_memory

LossOf = Callable[[MicroBatch], MethodLoss]
"""A micro-batch's part of the optimizer step's loss."""


class Advance(Protocol):
    """Reports progress."""

    def __call__(self, count: int) -> None:
        """So many more items are done."""


def optimizer_step(
    optimizers: Sequence[Optimizer], runner: Runner, rows: Sequence[Row], loss_of: LossOf, together: int = 1
) -> dict[str, float]:
    """Forward, backward and update over all rows.

    Out-of-memory starts the step afresh with half the token budget: gradients that a failed backward pass has
    half added up are thrown away, so the result is exactly that of a step that fitted at once.

    Args:
        optimizers: The first one's gradient norm and learning rate are reported without prefix.
        runner: Runs the models.
        rows: All rows of the step.
        loss_of: A micro-batch's part of the loss.
        together: Consecutive rows that must share a micro-batch.

    Returns:
        Metrics of the step: loss, grad_norm, learning_rate, and the method's own.
    """
    while True:
        try:
            loss, metrics = _accumulate(runner, rows, loss_of, together)
        except (RuntimeError, MemoryError) as error:
            for optimizer in optimizers:
                optimizer.zero_grad()
            if not is_out_of_memory(error):
                raise
            runner.halve_budget(error)
        else:
            break
    result = {"loss": loss, **metric_means(metrics)}
    for index, optimizer in enumerate(optimizers):
        prefix = "" if index == 0 else "critic/"
        result[f"{prefix}learning_rate"] = optimizer.next_learning_rate
        result[f"{prefix}grad_norm"] = optimizer.step()
    return result


def _accumulate(runner: Runner, rows: Sequence[Row], loss_of: LossOf, together: int) -> tuple[float, Metrics]:
    losses: list[Tensor] = []
    parts: list[Metrics] = []
    with runner.running(training=True):
        for chosen in runner.plan(rows, together):
            part = loss_of(runner.collate(rows, chosen))
            part.loss.backward()  # type: ignore[no-untyped-call]
            losses.append(part.loss.detach())
            parts.append(part.metrics)
    return float(torch.stack(losses).sum()), add_metrics(parts)


def read_all(runner: Runner, rows: Sequence[Row], read: Callable[[MicroBatch], Tensor]) -> Tensor:
    """Something of every read position, without gradient, in the rows' order.

    Args:
        runner: Runs the models.
        rows: R rows with N read positions in all.
        read: (n, ...) values of a micro-batch's read positions.

    Returns:
        (N, ...) values: row 0's positions first.
    """
    while True:
        try:
            with torch.no_grad(), runner.running(training=False):
                pieces = [
                    (chosen, read(runner.collate(rows, chosen))) for chosen in runner.plan(rows)
                ]
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            runner.halve_budget(error)
        else:
            break
    by_row: dict[int, Tensor] = {}
    for chosen, values in pieces:
        by_row.update(zip(chosen, values.split([len(rows[i].read) for i in chosen]), strict=True))
    return torch.cat([by_row[i] for i in range(len(rows))])
