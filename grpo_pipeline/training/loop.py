"""One optimizer step: micro-batches forward and backward, adding up to the whole step's loss.

Every trainer (policy by any method, reward model of any kind) ends here. A loss function is given a
micro-batch and returns its part of the step's loss; parts are summed, never averaged, so the cut into
micro-batches changes nothing but memory and speed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_pipeline.memory import is_out_of_memory
from grpo_pipeline.methods.base import MethodLoss
from grpo_pipeline.methods.metrics import Metrics, add_metrics, metric_means
from grpo_pipeline.training.batching import Row
from grpo_pipeline.training.layouts import MicroBatch
from grpo_pipeline.training.optimizer import Optimizer
from grpo_pipeline.training.runner import Runner

LossOf = Callable[[MicroBatch], MethodLoss]
"""A micro-batch's part of the optimizer step's loss."""


@dataclass(frozen=True)
class Part:
    """Rows of one kind in an optimizer step, with their loss.

    Attributes:
        rows: All rows of that kind in the step.
        loss_of: A micro-batch's part of the loss; its weights count for the whole step.
        together: Consecutive rows that must share a micro-batch.
    """

    rows: Sequence[Row]
    loss_of: LossOf
    together: int = 1


def optimizer_step(optimizers: Mapping[str, Optimizer], runner: Runner, parts: Sequence[Part]) -> dict[str, float]:
    """Forward, backward and update over all rows.

    Out-of-memory starts the step afresh with half the token budget: gradients that a failed backward pass has
    half added up are thrown away, so the result is exactly that of a step that fitted at once.

    Args:
        optimizers: Prefix of the metrics -> optimizer. All of them step; one without a gradient only counts.
        runner: Runs the models.
        parts: The step's rows and losses, added up.

    Returns:
        Metrics of the step: loss, grad_norm and learning_rate of each optimizer, and the losses' own.
    """
    while True:
        try:
            loss, metrics = _accumulate(runner, parts)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            runner.halve_budget(error)
        else:
            break
    result = {"loss": loss, **metric_means(metrics)}
    for prefix, optimizer in optimizers.items():
        result[f"{prefix}learning_rate"] = optimizer.next_learning_rate
        result[f"{prefix}grad_norm"] = optimizer.step()
    return result


def _accumulate(runner: Runner, parts: Sequence[Part]) -> tuple[float, Metrics]:
    losses: list[Tensor] = []
    metrics: list[Metrics] = []
    with runner.running(training=True):
        for part in parts:
            for chosen in runner.plan(part.rows, part.together):
                result = part.loss_of(runner.collate(part.rows, chosen))
                result.loss.backward()  # type: ignore[no-untyped-call]
                losses.append(result.loss.detach())
                metrics.append(result.metrics)
    total = float(torch.stack(losses).double().sum()) if losses else 0.0
    return total, add_metrics(metrics)


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
                pieces = [(chosen, read(runner.collate(rows, chosen))) for chosen in runner.plan(rows)]
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            runner.halve_budget(error)
        else:
            break
    by_row: dict[int, Tensor] = {}
    for chosen, values in pieces:
        by_row.update(zip(chosen, torch.split(values, [len(rows[i].read) for i in chosen]), strict=True))
    return torch.cat([by_row[i] for i in range(len(rows))])
