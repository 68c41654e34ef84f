"""What runs in the process of a worker on Ray: it opens the maker once, then makes shards as they are asked of it."""

import os
import socket
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_pipeline.errors import UserError
from grpo_pipeline.store.manifest import PLAN
from grpo_pipeline.store.shards import Staging, make_shard
from grpo_pipeline.workers.maker import Make, ShardMaker
from grpo_pipeline.workers.ray_ledger import KeptLedger


@dataclass(frozen=True)
class Surroundings:
    """What a worker takes over from the stage's process, as far as its machine has it.

    Credentials stay out of it, since Ray shows and logs what it is given: they come from the environment in which
    Ray was started.

    Attributes:
        folder: Working directory, which relative paths of the configuration start from.
        path: Module search path, for functions of the user's.
        gpus: GPUs that the worker reserves.
    """

    folder: str
    path: list[str]
    gpus: int

    def take(self) -> None:
        """Be where the stage is."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        sys.path += [entry for entry in self.path if entry not in sys.path]
        if self.gpus == 0:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""


class ShardWorker:
    """An actor; `open` comes first.

    Args:
        name: Its name, under which it asks for the ledger.
        maker: How a shard is made.
        staging: Where shards are written.
        keeper: Handle of the ledger's keeper; None where shards are made without one.
    """

    def __init__(self, name: str, maker: ShardMaker, staging: Staging, keeper: Any) -> None:
        self._name = name
        self._maker = maker
        self._staging = staging
        self._keeper = keeper
        self._opened = ExitStack()
        self._make: Make | None = None

    def answer(self) -> None:
        """Nothing but an answer: the process is there."""

    def open(self, surroundings: Surroundings) -> None:
        """Load what the shards need.

        Raises:
            UserError: The store is not to be seen from here.
        """
        surroundings.take()
        files = self._staging.files()
        if not files.exists(f"{self._staging.base}/{PLAN}"):
            raise UserError(
                f"{files.root}/{self._staging.base}: not to be seen from {socket.gethostname()}, where a worker on Ray "
                "runs: root has to be a folder that all machines share under the same path, or an fsspec URL (s3://)"
            )
        ledger = None if self._keeper is None else KeptLedger(self._keeper, self._name)
        self._make = self._opened.enter_context(self._maker.open(ledger))

    def make(self, index: int) -> None:
        """Make a shard and write it."""
        assert self._make is not None
        make_shard(self._staging, self._make, index)

    def close(self) -> None:
        """Let go of the model, and end what it has started."""
        self._opened.close()
