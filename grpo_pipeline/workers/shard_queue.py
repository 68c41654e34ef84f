"""Shards that wait to be made by processes of this machine, which take them from a file."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

_PREFIX = "grpo-pipeline-shards-"
_ALIVE = "alive.lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for a queue, on a local disk, gone after the block; those of stages that were killed go with it."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = FileLock(folder / _ALIVE)  # the kernel lets go of it when its holder dies
    try:
        with lock:
            _remove_the_dead(folder)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_the_dead(mine: Path) -> None:
    # One without a lock is being made.
    for lock in mine.parent.glob(f"{_PREFIX}*/{_ALIVE}"):
        # Alive (as mine is), or somebody else's.
        with suppress(OSError, Timeout), FileLock(lock, timeout=0):
            shutil.rmtree(lock.parent)


@dataclass(frozen=True)
class ShardQueue:
    """A queue that any number of processes may share.

    Attributes:
        path: Its file, on a local disk.
    """

    path: Path

    def fill(self, shards: Sequence[int]) -> None:
        """Have these wait, in this order."""
        self._write({"waiting": list(shards), "done": []})

    def take(self) -> int | None:
        """The next shard, which is the caller's from now on; None where none waits."""
        with self._state() as state:
            return state["waiting"].pop(0) if state["waiting"] else None

    def finish(self, shard: int) -> None:
        """Say that a shard is written."""
        with self._state() as state:
            state["done"].append(shard)

    def finished(self) -> list[int]:
        """The shards that are written, in the order they were."""
        with self._state() as state:
            return list(state["done"])

    def clear(self) -> None:
        """Have no further shard taken."""
        with self._state() as state:
            state["waiting"].clear()

    @contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        with FileLock(self.path.with_suffix(".lock")):  # the kernel lets go of it when its holder dies
            before = self.path.read_text(encoding="utf-8")
            state = json.loads(before)
            yield state
            if json.dumps(state) != before:
                self._write(state)

    def _write(self, state: dict[str, Any]) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(state), encoding="utf-8")
        part.replace(self.path)  # whole or not at all, whoever is killed
