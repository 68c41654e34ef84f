"""Workers that are threads of this process and share one model."""

import ctypes
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

from grpo_pipeline.labelling.ledger import Ledger
from grpo_pipeline.store.shards import Staging, make_shard
from grpo_pipeline.workers.maker import ShardMaker

_INTERRUPT_LIMIT_S = 2.0
"""How long Ctrl-C waits for threads that it has interrupted, so that what they use can be closed in order."""

_LOOK_S = 1.0
"""Longest wait of the main thread in one call: a Ctrl-C that comes just before such a call does not end it."""


def run_in_threads(maker: ShardMaker, count: int, staging: Staging, todo: Sequence[int]) -> Iterator[None]:
    """Make shards in `count` threads, yielding as each is done; with nothing to do nothing is opened.

    A local model computes for one thread at a time: while one samples, another checks answers and writes. Requests to
    a server go out from all of them. The first error ends it once the shards at work are written. Ctrl-C, or a
    cancellation, ends it at once: the shards at work are left, and what the maker opened is closed when no thread uses
    it any more.
    """
    if not todo:
        return
    with ExitStack() as stack:
        folder = maker.ledger_folder
        ledger = stack.enter_context(Ledger(folder)) if folder is not None else None
        make = partial(make_shard, staging, stack.enter_context(maker.open(ledger)))
        if count == 1:
            for index in todo:
                make(index)
                yield
            return
        threads = _Threads(make, todo, count)
        try:
            yield from threads.run()
        finally:
            threads.leave_to_them(stack)


class _Threads:
    """Threads that take one shard after another.

    They are daemons: the interpreter does not wait for them at its end, since a shard may take minutes.

    Args:
        make: Makes and writes a shard.
        todo: The shards.
        count: Threads at most.
    """

    def __init__(self, make: Callable[[int], None], todo: Sequence[int], count: int) -> None:
        self._make = make
        self._total = len(todo)
        self._waiting = deque(todo)
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._work, name=f"shards_{number}", daemon=True) for number in range(min(count, len(todo)))
        ]

    def run(self) -> Iterator[None]:
        """Have the shards made, yielding as each is done; the first error comes out when no thread is at work."""
        try:
            for thread in self._threads:
                thread.start()
            for _ in range(self._total):
                if (error := self._next_end()) is not None:
                    self._waiting.clear()
                    self._join()
                    raise error
                yield
            self._join()
        except Exception:
            raise
        except BaseException:
            self._interrupt()
            raise

    def leave_to_them(self, opened: ExitStack) -> None:
        """Where threads are still at work, take over what they use, to be closed after the last of them."""
        if any(thread.is_alive() for thread in self._threads):
            Thread(target=self._close_after, args=(opened.pop_all(),), name="shards_close", daemon=True).start()

    def _work(self) -> None:
        try:
            while (index := self._next()) is not None:
                self._make(index)
                self._ended.put(None)
        except BaseException as error:  # noqa: BLE001 - the interruption too, which must not print a traceback
            self._ended.put(error)

    def _next(self) -> int | None:
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _next_end(self) -> BaseException | None:
        while True:
            try:
                return self._ended.get(timeout=_LOOK_S)
            except Empty:
                continue

    def _join(self) -> None:
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_LOOK_S)

    def _interrupt(self) -> None:
        """Raise in the threads what Ctrl-C raises in the main thread, and give them a moment to end by it.

        It reaches a thread once that is back from a call outside Python, such as a request that waits for its answer.
        """
        self._waiting.clear()
        for thread in self._threads:
            if thread.ident is not None and thread.is_alive():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
                )
        limit = time.monotonic() + _INTERRUPT_LIMIT_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, limit - time.monotonic()))

    def _close_after(self, opened: ExitStack) -> None:
        self._join()
        opened.close()
