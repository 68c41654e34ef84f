"""What a stage that is cut into shards hands to its workers."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from grpo_pipeline.config import RunConfig
from grpo_pipeline.labelling.ledger import CompletionLedger
from grpo_pipeline.store import ShardResult

Make = Callable[[int], ShardResult]
"""Shard index -> its rows, which depend on nothing else; may be called from several threads at once."""


class ShardMaker(Protocol):
    """How the shards of one artifact are made.

    It is sent to other processes and machines, so it holds settings and references: never a frame or a model.
    """

    @property
    def config(self) -> RunConfig:
        """The run's settings, which say where its models compute."""
        ...

    @property
    def ledger_folder(self) -> Path | None:
        """The ledger of completions that shards are made with, on the disk of the stage's machine; None for none."""
        ...

    def open(self, ledger: CompletionLedger | None) -> AbstractContextManager[Make]:
        """Load what the shards need, once for a worker, and let go of it when the worker is done.

        Args:
            ledger: The one of `ledger_folder`.
        """
        ...
