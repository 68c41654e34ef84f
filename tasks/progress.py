"""A stage's progress in Prefect's UI, from the counts of its progress bars."""

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import TaskRunContext

from grpo_pipeline.progress import Count, counts, fraction
from tasks.guard import publishing

SECONDS_BETWEEN_UPDATES = 2.0


@contextmanager
def progress_artifact(key: str, description: str) -> Iterator[None]:
    """Keep a progress artifact up to date while the block runs; nothing outside a task.

    The server is asked from a thread of its own, so that the stage never waits for it, and an answer that does not
    come is logged and changes nothing. A stage that is done before the first update has none to show.

    Args:
        key: Key of the artifact.
        description: What runs; the innermost bar's count is added to it.
    """
    if TaskRunContext.get() is None:
        yield
        return
    shown = _Shown(key, description)
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(SECONDS_BETWEEN_UPDATES):
            shown.show(counts())

    # The thread needs this one's context: Prefect finds the task run and the server's address there.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(keep,), daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        ended.set()
        thread.join()
        shown.stopped()
        raise
    ended.set()
    thread.join()
    shown.finished()


class _Shown:
    def __init__(self, key: str, description: str) -> None:
        self.key = key
        self.description = description
        self.artifact: UUID | None = None
        self.percent = 0.0
        self.text = ""

    def show(self, bars: tuple[Count, ...]) -> None:
        if not bars:
            return
        done = fraction(bars)
        percent = self.percent if done is None else round(100 * done, 1)
        text = f"{self.description}: {_describe(bars[-1])}"
        if self.artifact is None or (percent, text) != (self.percent, self.text):
            self._send(percent, text)

    def finished(self) -> None:
        if self.artifact is not None:
            self._send(100.0, f"{self.description}: done")

    def stopped(self) -> None:
        if self.artifact is not None:
            self._send(self.percent, f"{self.description}: stopped here; what is finished is kept")

    def _send(self, percent: float, text: str) -> None:
        with publishing(f"progress of {self.description}"):
            if self.artifact is None:
                self.artifact = cast(UUID, create_progress_artifact(percent, key=self.key, description=text))
            else:
                update_progress_artifact(self.artifact, percent, description=text)
            self.percent, self.text = percent, text


def _describe(bar: Count) -> str:
    of = f" of {bar.total:,}" if bar.total is not None else ""
    return f"{bar.description}, {bar.done:,}{of} {bar.unit}"
