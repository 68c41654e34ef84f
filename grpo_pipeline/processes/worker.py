"""A forked worker: finishes its imports, waits for one call, does it, and ends."""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from typing import Any, NoReturn

from grpo_pipeline.errors import ProcessDiedError, UserError
from grpo_pipeline.processes import calls
from grpo_pipeline.processes.death import die_with_parent
from grpo_pipeline.processes.guard import VARIABLE
from grpo_pipeline.processes.messages import Request, decode_arguments, encode_result, find, messages, send
from grpo_pipeline.processes.preload import preload

_SECONDS_BETWEEN_COUNTS = 1.0


class Cancelled(BaseException):
    """The parent asked this call to end; what is open is closed on the way out."""


def main(inbox: socket.socket, server: int, modules: list[str]) -> NoReturn:
    """Wait for a call on the inbox, do it and exit; the server's death, by any signal, ends this process at once."""
    status = 1
    try:
        os.setsid()
        die_with_parent(server, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        preload(modules)
        packet, handles, _, _ = socket.recv_fds(inbox, 16, 2)
        inbox.close()
        if packet:
            connection, control = (socket.socket(fileno=handle) for handle in handles)
            status = _serve(connection, control)
    except BaseException:  # noqa: BLE001  (nothing may return into the server's code)
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def _serve(connection: socket.socket, control: socket.socket) -> int:
    signal.signal(signal.SIGTERM, _cancel)
    calls.ask_over(control)
    lock = threading.Lock()

    def say(message: dict[str, Any]) -> None:
        with lock, contextlib.suppress(OSError):  # the parent is gone, and this process soon will be
            send(connection, message)

    try:
        request = Request(**next(messages(connection)))
        connection.settimeout(None)
        _take_surroundings(request)
        _report(say)
        function = find(request.function)
        result = function(**decode_arguments(function, request.arguments))
        say({"result": encode_result(function, result)})
    except UserError as error:
        say({"user_error": str(error)})
    except ProcessDiedError as error:
        say({"died": str(error)})
    except Cancelled:
        return 128 + signal.SIGTERM
    except Exception as error:  # noqa: BLE001  (the parent raises it again)
        say({"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})
    return 0


def _cancel(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # twice would break off the clearing up
    raise Cancelled


def _take_surroundings(request: Request) -> None:
    mark = os.environ.get(VARIABLE, "")
    os.environ.clear()
    os.environ.update(request.environment | {VARIABLE: mark})
    os.chdir(request.folder)
    sys.path[:] = request.path


def _report(say: Any) -> None:
    """Send log records as they come, and the counts of open bars every second."""
    from dataclasses import asdict

    from grpo_pipeline.progress import counts

    class Forward(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say({"log": [record.name, record.levelno, record.getMessage()]})

    logger = logging.getLogger("grpo_pipeline")
    logger.handlers, logger.propagate = [Forward()], False
    logger.setLevel(logging.INFO)

    def keep_counting() -> None:
        last = None
        while not ended.wait(_SECONDS_BETWEEN_COUNTS):
            if (now := counts()) != last:
                say({"counts": [asdict(count) for count in now]})
                last = now

    ended = threading.Event()
    threading.Thread(target=keep_counting, daemon=True).start()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
