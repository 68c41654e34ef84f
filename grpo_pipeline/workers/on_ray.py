"""Workers on Ray: each an actor with a model of its own, which is given one shard after another."""

import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_pipeline.config import WorkersConfig
from grpo_pipeline.errors import UserError
from grpo_pipeline.store.shards import Staging, shard_key
from grpo_pipeline.workers.maker import ShardMaker
from grpo_pipeline.workers.ray_answers import answer_of
from grpo_pipeline.workers.ray_cluster import connect
from grpo_pipeline.workers.ray_devices import check_devices
from grpo_pipeline.workers.ray_ledger import kept_ledger
from grpo_pipeline.workers.ray_worker import ShardWorker, Surroundings

_LOSSES = 3
"""Workers that one shard may cost, or one place of the crew while its model loads, before the stage gives up."""

_SECONDS_BETWEEN_MESSAGES = 60.0
_CLOSE_LIMIT_S = 10.0
_VISIBLE_LIMIT_S = 120.0
"""Longest that a file which another machine wrote may take to be seen here; NFS keeps old news for a minute."""

_log = logging.getLogger(__name__)


class WorkerLostError(RuntimeError):
    """Workers on Ray died again and again at the same."""


def run_on_ray(maker: ShardMaker, workers: WorkersConfig, staging: Staging, todo: Sequence[int]) -> Iterator[None]:
    """Make shards by workers on Ray, yielding as each is done; with nothing to do no cluster is asked for.

    A worker that is lost (its machine went down, the system killed it for memory) is replaced, and the shard that it
    was at is made by another. However many are lost at once, the stage goes on: it gives up where the same shard, or
    the same place in the crew, loses one after another.

    Raises:
        UserError: As making a shard raises it; no Ray, no cluster, a store that its machines do not share, or GPUs
            that the workers would pass over in silence.
        WorkerLostError: Three workers were lost at one shard, or at one place before they had loaded their model.
    """
    if not todo:
        return
    with connect(workers) as ray:
        check_devices(ray, maker.config, workers.num_gpus)
        with kept_ledger(ray, maker.ledger_folder) as keeper:
            crew = _Crew(ray, maker, staging, workers, keeper)
            try:
                for index in crew.run(todo):
                    _await_file(staging, index)
                    yield
                crew.close()
            finally:
                crew.kill()


def _await_file(staging: Staging, index: int) -> None:
    deadline = time.monotonic() + _VISIBLE_LIMIT_S
    while staging.marker(shard_key(index)) is None:
        if time.monotonic() > deadline:
            raise UserError(
                f"{staging.root}: a worker on Ray has written shard {index} there, and it is not to be seen from this "
                "machine: root has to be a folder that all machines share, or an fsspec URL (s3://)"
            )
        time.sleep(1.0)


@dataclass(frozen=True)
class _Worker:
    """A worker of the crew.

    Attributes:
        name: What it asks for the ledger under.
        place: Its place in the crew, 0 to count - 1; whoever replaces it takes the same.
        actor: Handle of its process.
        begun: An answer that is there once its process runs.
    """

    name: str
    place: int
    actor: Any
    begun: Any


class _Crew:
    """The workers of one stage.

    Args:
        ray: The connected module.
        maker: How shards are made.
        staging: Where they are written.
        workers: How many workers, and what each reserves.
        keeper: Handle of the ledger's keeper, or None.
    """

    def __init__(self, ray: Any, maker: ShardMaker, staging: Staging, workers: WorkersConfig, keeper: Any) -> None:
        self._ray = ray
        self._arguments = (maker, staging, keeper)
        self._workers = workers
        self._keeper = keeper
        self._surroundings = Surroundings(str(Path.cwd()), [path for path in sys.path if path], workers.num_gpus)
        self._actor = ray.remote(ShardWorker).options(num_cpus=workers.num_cpus, num_gpus=workers.num_gpus)
        self._hired = 0
        self._crew: list[_Worker] = []
        # Answer that is waited for -> who gives it, and the shard that it makes; None while it gets ready for one.
        self._at_work: dict[Any, tuple[_Worker, int | None]] = {}
        # "shard N" or "place N" -> workers that were lost there.
        self._losses: Counter[str] = Counter()

    def run(self, todo: Sequence[int]) -> Iterator[int]:
        """Have the shards made; their indices, as each is done."""
        from ray.exceptions import OutOfMemoryError, RayActorError

        waiting, left = deque(todo), len(todo)
        idle: list[_Worker] = []
        for place in range(min(self._workers.count, len(todo))):
            self._hire(place)
        while left:
            answer = self._next_answer()
            worker, index = self._at_work.pop(answer)
            try:
                answer_of(answer)
            except (RayActorError, OutOfMemoryError) as error:
                self._count_loss(worker, index, error)
                self._part_with(worker)
                if index is not None:
                    waiting.appendleft(index)
                # Rather one that has nothing to do than a new one, for which there may be no room.
                if waiting and idle:
                    self._wake(idle.pop())
                elif waiting:
                    self._hire(worker.place)
                continue
            if index is None:
                self._losses[f"place {worker.place}"] = 0
            if waiting:
                self._give(worker, waiting.popleft())
            else:
                idle.append(worker)
            if index is not None:
                left -= 1
                yield index

    def close(self) -> None:
        """Have every worker let go of its model and end what it started."""
        answers = [worker.actor.close.remote() for worker in self._crew]
        self._ray.wait(answers, num_returns=len(answers), timeout=_CLOSE_LIMIT_S)

    def kill(self) -> None:
        """End the workers' processes."""
        for worker in self._crew:
            self._ray.kill(worker.actor)
        self._crew.clear()

    def _hire(self, place: int) -> None:
        name = f"worker-{self._hired}"
        actor = self._actor.remote(name, *self._arguments)
        worker = _Worker(name, place, actor, begun=actor.answer.remote())
        self._hired += 1
        self._crew.append(worker)
        self._at_work[actor.open.remote(self._surroundings)] = (worker, None)

    def _wake(self, worker: _Worker) -> None:
        # It may have been lost while it had nothing to do, for which no shard is to blame.
        self._at_work[worker.actor.answer.remote()] = (worker, None)

    def _give(self, worker: _Worker, shard: int) -> None:
        self._at_work[worker.actor.make.remote(shard)] = (worker, shard)

    def _count_loss(self, worker: _Worker, shard: int | None, error: Exception) -> None:
        where = f"place {worker.place}" if shard is None else f"shard {shard}"
        self._losses[where] += 1
        if self._losses[where] == _LOSSES:
            what = "before they were ready for a shard" if shard is None else f"at shard {shard}"
            raise WorkerLostError(
                f"{_LOSSES} workers on Ray were lost one after another {what}; finished shards are kept, run it again. "
                f"Of the last one Ray says: {error}"
            ) from error
        reason = (str(error).splitlines() or [type(error).__name__])[-1]
        _log.warning("a worker on Ray was lost (%s), another takes its place: %s", where, reason)

    def _part_with(self, worker: _Worker) -> None:
        self._crew.remove(worker)
        # Ray also calls lost what it cannot reach for now. Such a one must neither go on nor be heard again.
        self._ray.kill(worker.actor)
        if self._keeper is not None:
            answer_of(self._keeper.leave.remote(worker.name))

    def _next_answer(self) -> Any:
        while True:
            answers, _ = self._ray.wait(list(self._at_work), timeout=_SECONDS_BETWEEN_MESSAGES)
            if answers:
                return answers[0]
            if all(shard is None for _, shard in self._at_work.values()):
                self._say_what_is_waited_for()

    def _say_what_is_waited_for(self) -> None:
        signs = [worker.begun for worker, _ in self._at_work.values()]
        begun, _ = self._ray.wait(signs, num_returns=len(signs), timeout=0)
        if begun:
            _log.info(
                "%d of %d workers on Ray have begun, and load what their shards need", len(begun), len(self._at_work)
            )
            return
        free = {name: amount for name, amount in self._ray.available_resources().items() if name in ("CPU", "GPU")}
        _log.warning(
            "no worker on Ray has found room yet: each wants %d CPUs and %d GPUs of one machine; free are %s",
            self._workers.num_cpus,
            self._workers.num_gpus,
            free,
        )
