"""Shards that wait to be made by processes of this machine, which take them from a file."""

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ShardQueue:
    """A queue that any number of processes may share.

    Attributes:
        path: Its file, on a local disk.
    """

    path: Path

    def fill(self, shards: Sequence[int]) -> None:
        """Have these wait, in this order."""
        self.path.write_text(json.dumps({"waiting": list(shards), "done": []}), encoding="utf-8")

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
        with self.path.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # the kernel lets go of it when its holder dies
            before = file.read()
            state = json.loads(before)
            yield state
            if (after := json.dumps(state)) != before:
                file.seek(0)
                file.write(after)
                file.truncate()
