"""The Prefect server that a flow command talks to: answering before the flow starts, or a message of what to do."""

import signal
import sys
import threading
from contextvars import copy_context

import httpx
from prefect.client.orchestration import get_client
from prefect.settings import get_current_settings

from grpo_pipeline.errors import UserError
from grpo_pipeline.processes.guard import ProcessGuard

_guard: ProcessGuard | None = None
"""Whose end is the temporary server's."""


def require_server(name: str) -> None:
    """Start the temporary server where no other is configured, and see that the server answers.

    Prefect itself would do so inside the flow's engine, where a failure is a long traceback.

    Args:
        name: The flow as `grpo-pipeline run` knows it, for the message.

    Raises:
        UserError: The server does not answer, did not start in time, or none is configured or allowed.
    """
    without = f"`grpo-pipeline run {name} ...` does the same and needs no server"
    settings = get_current_settings()
    if settings.api.url:
        _require_answer(without)
    elif settings.server.ephemeral.enabled:
        _start_temporary(settings.server.ephemeral.startup_timeout_seconds, without)
    else:
        raise UserError(
            "no Prefect server is configured, and PREFECT_SERVER_EPHEMERAL_ENABLED forbids a temporary one: "
            f"{without}; or start a server (prefect server start) and set PREFECT_API_URL"
        )


def _require_answer(without: str) -> None:
    with get_client(sync_client=True) as client:
        failure = client.api_healthcheck()
        if failure is not None:
            reason = (str(failure).splitlines() or [""])[0] or type(failure).__name__
            raise UserError(
                f"the Prefect server at {client.api_url} does not answer ({reason}): start it (prefect server start), "
                f"correct PREFECT_API_URL, or unset it for a temporary one; {without}"
            )


def _start_temporary(limit: int, without: str) -> None:
    sys.stderr.write("starting Prefect's temporary server ...\n")
    sys.stderr.flush()
    try:
        _start_apart()
    except (RuntimeError, httpx.HTTPError) as error:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise UserError(
            f"Prefect's temporary server did not start ({reason.rstrip('.')}; the limit is {limit} s). Where the "
            f"machine is busy: {without}; or set PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS higher, or start a "
            "server (prefect server start) and set PREFECT_API_URL"
        ) from error


def _start_apart() -> None:
    """Start the server so that Ctrl-C does not reach it, and that it ends with this process however that ends.

    The flow's last reports go to it after Ctrl-C, which a terminal sends to all processes of a command.
    """
    failed: list[BaseException] = []

    def start() -> None:
        # The server inherits which signals this thread blocks.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            # Prefect keeps one temporary server a process: the flow's own clients find this one.
            with get_client(sync_client=True):
                pass
        except BaseException as error:  # noqa: BLE001  (raised again by the thread that waits)
            failed.append(error)

    global _guard  # noqa: PLW0603 - it lasts as long as this process, and so does the server
    _guard = guard = ProcessGuard(mark_environment=True)
    # Prefect keeps the settings that hold here in the context.
    thread = threading.Thread(target=copy_context().run, args=(start,), daemon=True, name="temporary-server")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
    finally:
        guard.unmark()
    if failed:
        guard.close()
        raise failed[0]
