"""One optimizer step: micro-batches forward and backward, adding up to the whole step's loss.

Every trainer (policy by any method, reward model of any kind) ends here. A loss function is given a
micro-batch and returns its part of the step's loss; parts are summed, never averaged, so the cut into
micro-batches, and who of several processes runs which, changes nothing but memory and speed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from grpo_pipeline.errors import UserError
from grpo_pipeline.memory import is_out_of_memory
from grpo_pipeline.methods.base import MethodLoss
from grpo_pipeline.methods.metrics import Metrics, add_metrics, metric_means
from grpo_pipeline.training.batching import Row
from grpo_pipeline.training.layouts import MicroBatch
from grpo_pipeline.training.optimizer import Optimizer
from grpo_pipeline.training.processes import Processes
from grpo_pipeline.training.runner import Runner

T = TypeVar("T")

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
    """Forward, backward and update over all rows, which every process is given whole.

    Out-of-memory, in any process, starts the step afresh with half the token budget: gradients that a failed
    backward pass has half added up are thrown away, so the result is exactly that of a step that fitted at once.

    Args:
        optimizers: Prefix of the metrics -> optimizer. All of them step; one without a gradient only counts.
        runner: Runs the models.
        parts: The step's rows and losses, added up.

    Returns:
        Metrics of the step: loss, grad_norm and learning_rate of each optimizer, and the losses' own.
    """
    with runner.threads([row for part in parts for row in part.rows]):
        return _step(optimizers, runner, parts)


def _step(optimizers: Mapping[str, Optimizer], runner: Runner, parts: Sequence[Part]) -> dict[str, float]:
    processes = runner.processes
    while True:
        done = _unless_out_of_memory(runner, lambda: _accumulate(runner, parts))
        if done is not None:
            break
        for optimizer in optimizers.values():
            optimizer.zero_grad()
    if processes.count == 1:
        loss, metrics = done
    else:
        loss, metrics = _add_up(processes, *done)
    result = {"loss": loss, **metric_means(metrics)}
    for prefix, optimizer in optimizers.items():
        if processes.count > 1:
            processes.add_gradients(list(optimizer.parameters.values()))
        result[f"{prefix}learning_rate"] = optimizer.next_learning_rate
        result[f"{prefix}grad_norm"] = optimizer.step()
    return result


def _accumulate(runner: Runner, parts: Sequence[Part]) -> tuple[float, Metrics]:
    losses: list[Tensor] = []
    metrics: list[Metrics] = []
    # FSDP2 takes the mean of the processes' gradients; the loss is a sum.
    scale = runner.processes.count if runner.processes.is_sharded else 1
    with runner.running(training=True):
        for part in parts:
            for chosen, counts in own_batches(runner.plan(part.rows, part.together), part.rows, runner.processes):
                result = part.loss_of(runner.collate(part.rows, chosen))
                (result.loss * (scale * counts)).backward()  # type: ignore[no-untyped-call]
                if counts:
                    losses.append(result.loss.detach())
                    metrics.append(result.metrics)
    total = float(torch.stack(losses).double().sum()) if losses else 0.0
    return total, add_metrics(metrics)


def own_batches(plan: Sequence[list[int]], rows: Sequence[Row], processes: Processes) -> list[tuple[list[int], bool]]:
    """This process's micro-batches of a plan that all have made, heaviest first to whoever has least.

    Args:
        plan: Row indices of each micro-batch.
        rows: The step's rows.
        processes: Among whom they are divided.

    Returns:
        Row indices, and whether the micro-batch counts: sharded processes all run equally many, those with
        fewer run one again for nothing.
    """
    if processes.count == 1:
        return [(chosen, True) for chosen in plan]
    costs = [sum(len(rows[i].tokens) for i in chosen) for chosen in plan]
    given: list[list[int]] = [[] for _ in range(processes.count)]
    for batch in sorted(range(len(plan)), key=lambda b: (-costs[b], b)):
        spent = [sum(costs[b] for b in of) for of in given]
        given[spent.index(min(spent))].append(batch)
    own = [(plan[batch], True) for batch in given[processes.rank]]
    if processes.is_sharded and plan:
        lightest = min(range(len(plan)), key=lambda b: (costs[b], b))
        own += [(plan[lightest], False)] * (max(map(len, given)) - len(own))
    return own


def _add_up(processes: Processes, loss: float, metrics: Metrics) -> tuple[float, Metrics]:
    parts = processes.gather((loss, {name: value.double().cpu() for name, value in metrics.items()}))
    return sum(loss for loss, _ in parts), add_metrics(part for _, part in parts)


def _unless_out_of_memory(runner: Runner, run: Callable[[], T]) -> T | None:
    """What `run` gives; None where memory was short in any process, and the token budget is now half.

    Raises:
        UserError: Where there is nothing left to halve, or processes that share their weights cannot agree on it.
    """
    short: BaseException | None = None
    result: T | None = None
    try:
        result = run()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if runner.processes.is_sharded:
            # The others wait for this one in the middle of a pass.
            raise UserError(
                f"out of memory with {runner.budget} tokens in a micro-batch; lower training.tokens_per_microbatch"
            ) from error
        short = error.with_traceback(None)  # which holds the failed pass's tensors
    if runner.processes.count == 1 or runner.processes.is_sharded:
        anywhere = short is not None
    else:
        anywhere = runner.processes.any(short is not None)
    if not anywhere:
        return result
    runner.halve_budget(short or MemoryError("another process ran out of memory"))
    return None


def read_all(runner: Runner, rows: Sequence[Row], read: Callable[[MicroBatch], Tensor]) -> Tensor:
    """Something of every read position, without gradient, in the rows' order, in every process.

    Args:
        runner: Runs the models.
        rows: R rows with N read positions in all.
        read: (n, ...) values of a micro-batch's read positions.

    Returns:
        (N, ...) values: row 0's positions first.
    """

    def read_own() -> list[tuple[list[int], Tensor]]:
        with torch.no_grad(), runner.threads(rows), runner.running(training=False):
            batches = own_batches(runner.plan(rows), rows, runner.processes)
            pieces = [(chosen, read(runner.collate(rows, chosen)), counts) for chosen, counts in batches]
        return [(chosen, values) for chosen, values, counts in pieces if counts]

    pieces = None
    while pieces is None:
        pieces = _unless_out_of_memory(runner, read_own)
    if runner.processes.count > 1:
        cpu = [(chosen, values.cpu()) for chosen, values in pieces]
        pieces = [(c, v.to(runner.device)) for part in runner.processes.gather(cpu) for c, v in part]
    by_row: dict[int, Tensor] = {}
    for chosen, values in pieces:
        by_row.update(zip(chosen, torch.split(values, [len(rows[i].read) for i in chosen]), strict=True))
    return torch.cat([by_row[i] for i in range(len(rows))])
