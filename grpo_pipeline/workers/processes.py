"""Workers that are processes of this machine, each with a model of its own.

They are children of the stage (`processes.calls`): forked, their imports done, and gone with it however it ends.
"""

import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from grpo_pipeline.config import RunConfig, WorkersConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.labelling.ledger import Ledger
from grpo_pipeline.processes.calls import each_second, run_in_child
from grpo_pipeline.processes.messages import decode, encode, find, name_of
from grpo_pipeline.store.shards import Staging, make_shard
from grpo_pipeline.workers.maker import ShardMaker
from grpo_pipeline.workers.shard_queue import ShardQueue

_SECONDS_BETWEEN_LOOKS = 0.2


class _StageEndsError(BaseException):
    """The stage is ending, and its workers with it."""


def run_in_processes(
    maker: ShardMaker, workers: WorkersConfig, staging: Staging, todo: Sequence[int]
) -> Iterator[None]:
    """Make shards in `workers.count` processes, yielding as each is done; with nothing to do none is started.

    Each takes the next shard that waits. After the first error no further one is taken, and what is at work is written.

    Raises:
        UserError: As making a shard raises it; fewer GPUs than processes.
        ChildError: A process died, or failed otherwise.
    """
    if not todo:
        return
    count = min(workers.count, len(todo))
    places = _places(maker.config, count)
    ending = threading.Event()

    def check() -> None:
        if ending.is_set():
            raise _StageEndsError

    def work(gpus: str | None) -> None:
        each_second.set(check)
        try:
            run_in_child(make_shards, kind, encode(type(maker), maker), staging, queue.path, gpus, threads)
        except BaseException:
            queue.clear()
            raise

    kind, threads = name_of(type(maker)), max(1, _threads() // count)
    with tempfile.TemporaryDirectory(prefix="grpo-pipeline-shards-", ignore_cleanup_errors=True) as folder:
        queue = ShardQueue(Path(folder, "queue.json"))
        queue.fill(todo)
        pool = ThreadPoolExecutor(count, thread_name_prefix="shards")
        try:
            futures = [pool.submit(work, gpus) for gpus in places]
            told = 0
            going = set(futures)
            while going:
                _, going = wait(going, _SECONDS_BETWEEN_LOOKS, FIRST_EXCEPTION)
                finished = len(queue.finished())
                yield from [None] * (finished - told)
                told = finished
            for future in futures:
                future.result()
        finally:
            ending.set()
            pool.shutdown()


def make_shards(kind: str, maker: str, staging: Staging, queue: Path, gpus: str | None, threads: int) -> None:
    """Make shards until none waits; what a worker runs.

    Args:
        kind: The maker's class, `module:name`.
        maker: The maker as JSON text.
        staging: Where shards are written.
        queue: File of the `ShardQueue`.
        gpus: What CUDA_VISIBLE_DEVICES is here; None leaves it as it is.
        threads: CPU threads to compute with.
    """
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus  # CUDA looks at it when it is first used, which was not yet
    import torch

    torch.set_num_threads(threads)
    shards = ShardQueue(queue)
    # Before there is a shard, nothing is opened: others may have been faster.
    if (shard := shards.take()) is None:
        return
    made_by: Any = find(kind)
    opened: ShardMaker = decode(made_by, maker)
    with ExitStack() as stack:
        folder = opened.ledger_folder
        ledger = stack.enter_context(Ledger(folder)) if folder is not None else None
        make = partial(make_shard, staging, stack.enter_context(opened.open(ledger)))
        while shard is not None:
            make(shard)
            shards.finish(shard)
            shard = shards.take()


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _places(config: RunConfig, count: int) -> list[str | None]:
    """The GPUs of each process, as CUDA_VISIBLE_DEVICES names them; None where they compute on CPUs.

    Raises:
        UserError: There are fewer than they need.
    """
    import torch

    devices = {place.device for place in (config.model, config.labelling.completer) if place is not None}
    if config.engine.kind == "server" or devices == {"cpu"} or not torch.cuda.is_available():
        return [None] * count
    needed = config.engine.tensor_parallel_size if config.engine.kind == "vllm" else 1
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    if len(gpus) < count * needed:
        raise UserError(
            f"workers.task_runner = 'processes' with workers.count = {count}: each process takes {needed} of the "
            f"machine's GPUs for itself, and {len(gpus)} are visible; set workers.count = {len(gpus) // needed or 1}, "
            "or model.device = 'cpu'"
        )
    return [",".join(gpus[place * needed : (place + 1) * needed]) for place in range(count)]
