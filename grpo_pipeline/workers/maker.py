"""What a stage that is cut into shards hands to its workers."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from grpo_pipeline.config import RunConfig
from grpo_pipeline.labelling.ledger import CompletionLedger, Ledger
from grpo_pipeline.store import ShardResult
from grpo_pipeline.store.shards import Staging, make_shard

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

    @property
    def place(self) -> tuple[str, int]:
        """The setting of the device that the model of a worker is on, and how many GPUs it is spread over there.

        0 where it has no model of its own: a server has it.
        """
        ...

    def open(self, ledger: CompletionLedger | None) -> AbstractContextManager[Make]:
        """Load what the shards need, once for a worker, and let go of it when the worker is done.

        Args:
            ledger: The one of `ledger_folder`.
        """
        ...


@contextmanager
def opened(maker: ShardMaker, staging: Staging) -> Iterator[Callable[[int], None]]:
    """A function that makes a shard and writes it, of a maker that is opened in this process, its ledger with it."""
    with ExitStack() as stack:
        folder = maker.ledger_folder
        ledger = stack.enter_context(Ledger(folder)) if folder is not None else None
        yield partial(make_shard, staging, stack.enter_context(maker.open(ledger)))
