"""Workers that are processes of this machine, each with a model of its own.

They are children of the stage (`processes.calls`): forked, their imports done, and gone with it however it ends.
"""

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_pipeline.config import WorkersConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.processes.calls import each_second, run_in_child
from grpo_pipeline.processes.messages import decode, encode, find, name_of
from grpo_pipeline.store.shards import Staging
from grpo_pipeline.workers.maker import ShardMaker, opened
from grpo_pipeline.workers.shard_queue import ShardQueue, scratch_folder
from grpo_pipeline.workers.threads import run_in_threads

_SECONDS_BETWEEN_LOOKS = 0.2

_log = logging.getLogger(__name__)


class _StageEndsError(BaseException):
    """The stage is ending, and its workers with it."""


def run_in_processes(
    maker: ShardMaker, workers: WorkersConfig, staging: Staging, todo: Sequence[int]
) -> Iterator[None]:
    """Make shards in `workers.count` processes, yielding as each is done; with nothing to do none is started.

    Each takes the next shard that waits; a single one that needs no GPU of its own is this process. After the first
    error no further shard is taken, and what is at work is written. Where each needs GPUs of its own, there are no more
    processes than those are enough for.

    Raises:
        UserError: As making a shard raises it.
        ProcessDiedError: A process died.
        ChildError: One failed otherwise.
    """
    if not todo:
        return
    places = _places(maker, min(workers.count, len(todo)))
    if places == [None]:
        yield from run_in_threads(maker, 1, staging, todo)
        return
    with scratch_folder() as folder:
        queue = ShardQueue(folder / "queue.json")
        queue.fill(todo)
        yield from _run(maker, places, staging, queue)


def _run(maker: ShardMaker, places: Sequence[str | None], staging: Staging, queue: ShardQueue) -> Iterator[None]:
    """Have the shards of a queue made by a process for each place, yielding as each is done."""
    import torch

    kind, threads = name_of(type(maker)), max(1, torch.get_num_threads() // len(places))
    ending, check_of_caller = threading.Event(), each_second.get()

    def check() -> None:
        if ending.is_set():
            raise _StageEndsError

    def work(gpus: str | None) -> None:
        each_second.set(check)
        try:
            run_in_child(make_shards, kind, encode(type(maker), maker), staging, queue.path, gpus, threads)
        except BaseException:
            with suppress(OSError):  # the disk is full: the error that led here says so, or says more
                queue.clear()
            raise

    pool = ThreadPoolExecutor(len(places), thread_name_prefix="shards")
    try:
        going = {pool.submit(work, gpus) for gpus in places}
        errors: list[BaseException] = []
        told = 0
        while going:
            ended, going = wait(going, _SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION)
            errors += _errors(ended)
            finished = len(queue.finished())
            yield from [None] * (finished - told)
            told = finished
            if check_of_caller is not None:
                check_of_caller()
        for further in [error for error in errors[1:] if str(error) != str(errors[0])]:
            _log.warning("another process that made shards failed too: %s", further)
        if errors:
            raise errors[0]
    finally:
        ending.set()
        pool.shutdown()


def _errors(ended: "set[Future[None]]") -> list[BaseException]:
    return [error for future in ended if (error := future.exception()) is not None]


def make_shards(kind: str, maker: str, staging: Staging, queue: Path, gpus: str | None, threads: int) -> None:
    """Make shards until none waits; what a worker runs.

    Args:
        kind: The maker's class, `module:name`.
        maker: The maker as JSON text.
        staging: Where shards are written.
        queue: File of the `ShardQueue`.
        gpus: What CUDA_VISIBLE_DEVICES is here; None leaves it as it is.
        threads: CPU threads to compute with.

    Raises:
        UserError: As making a shard raises it, or CUDA does not see the GPUs.
    """
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus  # CUDA looks at it when it is first used, which was not yet
    import torch

    if gpus is not None and not torch.cuda.is_available():
        raise UserError(f"CUDA_VISIBLE_DEVICES={gpus}: CUDA sees no such GPU; correct the variable")
    torch.set_num_threads(threads)
    shards = ShardQueue(queue)
    # Before there is a shard, nothing is opened: others may have been faster.
    if (shard := shards.take()) is None:
        return
    made_by: Any = find(kind)
    with opened(decode(made_by, maker), staging) as make:
        while shard is not None:
            make(shard)
            shards.finish(shard)
            shard = shards.take()


def _places(maker: ShardMaker, count: int) -> list[str | None]:
    """A place for each process: its GPUs, as CUDA_VISIBLE_DEVICES names them; None where it computes on the CPU."""
    import torch

    device, needed = maker.place
    if needed == 0 or device == "cpu" or ":" in device or not torch.cuda.is_available():
        return [None] * count
    visible, there = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()
    gpus = visible.split(",")[:there] if visible else [str(index) for index in range(there)]
    enough_for = max(1, len(gpus) // needed)
    if enough_for < count:
        _log.warning(
            "workers.count = %d: each process takes %d of the machine's GPUs for itself, and %d are visible, enough "
            "for %d",
            count,
            needed,
            len(gpus),
            enough_for,
        )
    return [",".join(gpus[place * needed : (place + 1) * needed]) for place in range(min(count, enough_for))]
