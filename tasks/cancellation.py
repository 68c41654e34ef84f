"""Ends a run that was cancelled and that Prefect does not reach.

Who starts a flow's process (a worker, `serve`) listens for its cancellation and ends the process within seconds. It
stops listening for good when the server is away for a while, and nobody listens for a flow that was started from a
shell. So the flow's process looks by itself as long as a stage is at work.
"""

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, TaskRunContext
from prefect.exceptions import Abort
from prefect.logging import get_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled

from grpo_pipeline.processes.calls import each_second

SECONDS_BETWEEN_LOOKS = 5.0
PATIENCE_S = 10.0
"""Time that Prefect's own way is given, from the first look that found the run cancelled."""

_log = get_logger("grpo_pipeline.cancellation")


class RunCancelledError(BaseException):
    """The run was cancelled; no Exception, so that nothing on the way takes it for a stage's failure."""


@contextmanager
def watch_for_cancellation() -> Iterator[None]:
    """End the block's stage when its flow run, or the one above, was cancelled; nothing outside a task.

    A stage in a child process ends at once, one in this process before the next begins.

    Raises:
        RunCancelledError: It was.
    """
    if TaskRunContext.get() is None:
        yield
        return
    ended, cancelled = threading.Event(), threading.Event()

    def check() -> None:
        if cancelled.is_set():
            raise RunCancelledError("the run was cancelled")

    # The thread needs this one's context: Prefect finds the run and the server's address there.
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_look, ended, cancelled), daemon=True, name="cancellation").start()
    before = each_second.set(check)
    try:
        yield
        check()
    finally:
        each_second.reset(before)
        ended.set()


def _look(ended: threading.Event, cancelled: threading.Event) -> None:
    root, looks = None, 0
    while not ended.wait(SECONDS_BETWEEN_LOOKS):
        try:
            root = root or _root()
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(root).state
        except Exception as error:  # noqa: BLE001  (the server is away: it is asked again)
            _log.debug("cannot look whether the run was cancelled: %s", error)
            continue
        looks = looks + 1 if state is not None and (state.is_cancelling() or state.is_cancelled()) else 0
        if looks > PATIENCE_S / SECONDS_BETWEEN_LOOKS:
            cancelled.set()
            return


def _root() -> UUID:
    """The flow run that a person started, and cancels; a round of a job is a run below it."""
    return UUID(flow_run.root_flow_run_id)


@contextmanager
def ending_the_run() -> Iterator[None]:
    """Where a stage of the block was ended by a cancellation, say so to the server, and leave the flow.

    Raises:
        prefect.exceptions.Abort: The flow run is over, in the state Cancelled.
    """
    try:
        yield
    except RunCancelledError:
        state: State[Any] = Cancelled(message="Flow run was cancelled: its own process found out.")
        _log.info("this run was cancelled; it ends, and what is finished is kept")
        context = FlowRunContext.get()
        own = {context.flow_run.id} if context is not None and context.flow_run is not None else set()
        with get_client(sync_client=True) as client:
            for run in own | {_root()}:
                client.set_flow_run_state(run, state, force=True)
        ending = Abort(state.message)
        ending.state = state  # type: ignore[attr-defined]  # where Prefect's engine looks for it
        raise ending from None
