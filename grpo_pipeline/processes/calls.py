"""Calling a function in a child process that ends with this one: `run_in_child`."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from grpo_pipeline.errors import ChildError, ProcessDiedError, UserError
from grpo_pipeline.processes import preload
from grpo_pipeline.processes.guard import ProcessGuard, package_path
from grpo_pipeline.processes.messages import Request, decode_result, encode_arguments, messages, name_of, send
from grpo_pipeline.progress import Count, relay

P = ParamSpec("P")
R = TypeVar("R")

_PACKET = 1 << 16
_END_LIMIT_S = 9.0
"""Longest wait for a cancelled call's processes; the server kills them after `server.GRACE_S`."""

each_second: ContextVar[Callable[[], None] | None] = ContextVar("each_second", default=None)
"""Called about every second while a call is under way; what it raises ends the call, as a cancellation does."""


def run_in_child(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a child process and give its result.

    The child and all it starts end with this process, by whatever signal that ends. An exception here while the
    call is under way (Ctrl-C, a cancellation) ends the child first: SIGTERM, so that it can close its files, and
    SIGKILL five seconds later. Progress and log records of the child appear here as if it were this process.

    Args:
        function: A module's function with type hints that pydantic can read and write as JSON.
        *args: Its arguments.
        **kwargs: Its arguments.

    Raises:
        UserError: As the function raised it.
        ProcessDiedError: Its process died, or that of a call of its own.
        ChildError: The function raised anything else.
    """
    request = Request(
        function=name_of(function),
        arguments=encode_arguments(function, args, kwargs),
        environment=dict(os.environ),
        folder=str(Path.cwd()),
        path=list(sys.path),
    )
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            call = _shared().start(theirs)
        try:
            send(ours, asdict(request))
            answer = _answer(call, ours)
        except BrokenPipeError:
            answer = {}
        except BaseException:
            call.cancel()
            raise
        finally:
            relay(call, ())
    if "result" in answer:
        result: R = decode_result(function, answer["result"])
        return result
    if "user_error" in answer:
        raise UserError(answer["user_error"])
    if "died" in answer:
        raise ProcessDiedError(answer["died"])
    if "error" in answer:
        raise ChildError(
            f"{request.function} failed: {answer['error']}\n\nIn the child process:\n{answer['traceback']}"
        )
    raise ProcessDiedError(f"{request.function}: its process {call.ending()}; what was finished is kept, run it again")


def _answer(call: "_Call", connection: socket.socket) -> dict[str, Any]:
    """The call's last message; empty where the process died without one."""
    for message in messages(connection, _check):
        if "counts" in message:
            relay(call, [Count(**count) for count in message["counts"]])
        elif "log" in message:
            name, level, text = message["log"]
            logging.getLogger(name).log(level, "%s", text)
        else:
            return message
    return {}


def _check() -> None:
    # A call in a thread would hold up the interpreter's end until it is done.
    if not threading.main_thread().is_alive():
        raise ChildError("this process is ending, and the call with it")
    if (further := each_second.get()) is not None:
        further()


class _Call:
    """One call, as the server knows it."""

    def __init__(self, server: "_Server", number: int) -> None:
        self._server, self.number = server, number
        self.status: int | None = None
        self.ended = threading.Event()

    def cancel(self) -> None:
        """End the call's processes and wait until they are gone."""
        self._server.send({"cancel": self.number})
        self.ended.wait(_END_LIMIT_S)

    def ending(self) -> str:
        """How the process ended, in words."""
        self.ended.wait(_END_LIMIT_S)
        if self.status is None:
            return "was lost"
        if self.status < 0:
            name = signal.Signals(-self.status).name
            return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        return f"exited with code {self.status}"


class _Server:
    """The server process, as one of those that ask it for calls.

    Args:
        control: Socket to it.
    """

    def __init__(self, control: socket.socket) -> None:
        self.alive = True
        self._control = control
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._number = 0

    def start(self, connection: socket.socket) -> _Call:
        """Have a worker take a call on the other end of the connection."""
        with self._lock:
            self._number += 1
            call = self._calls[self._number] = _Call(self, self._number)
            socket.send_fds(self._control, [json.dumps({"run": call.number}).encode()], [connection.fileno()])
        return call

    def send(self, message: dict[str, Any]) -> None:
        """Tell the server something; a dead one needs telling nothing."""
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            return

    def listen(self) -> None:
        """Take in which calls have ended, until the server has."""
        while True:
            try:
                packet = self._control.recv(_PACKET)
            except OSError:
                packet = b""
            if not packet:
                break
            message = json.loads(packet)
            with self._lock:
                call = self._calls.pop(message["ended"])
            call.status = message["status"]
            call.ended.set()
        self.alive = False

    def give_up(self) -> None:
        """Say of the calls that are left that they were lost."""
        with self._lock:
            for call in self._calls.values():
                call.ended.set()


def _own_server() -> _Server:
    """A server process of this process.

    A thread that lives as long as this process starts it, since the kernel ties PR_SET_PDEATHSIG to the thread.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = _Server(ours)
    started = threading.Event()
    failed: list[BaseException] = []

    def live() -> None:
        try:
            guard = ProcessGuard()
            command = [sys.executable, "-P", "-m", "grpo_pipeline.processes.server"]
            command += [str(os.getpid()), str(theirs.fileno())]
            command += [",".join(preload.IN_SERVER), ",".join(preload.IN_WORKER)]
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**guard.environment, "PYTHONPATH": package_path()},
                start_new_session=True,
            )
        except BaseException as error:  # noqa: BLE001  (raised again by the thread that waits)
            failed.append(error)
            return
        finally:
            theirs.close()
            started.set()
        server.listen()
        process.wait()
        guard.close()
        server.give_up()

    threading.Thread(target=live, daemon=True, name="stage-server").start()
    started.wait()
    if failed:
        raise failed[0]
    return server


def _parents_server(control: socket.socket) -> _Server:
    """The server that this process was forked from."""
    server = _Server(control)
    threading.Thread(target=server.listen, daemon=True, name="stage-server").start()
    return server


_server: _Server | None = None
_server_lock = threading.Lock()
_control: socket.socket | None = None
"""A worker's socket to the server that it was forked from."""


def start_server() -> None:
    """Start importing what children need, so that the first call need not wait for it."""
    _shared()


def ask_over(control: socket.socket) -> None:
    """Have this process, a worker, ask for its own calls over a socket to the server that it was forked from."""
    global _control  # noqa: PLW0603 - one server a process is the point
    _control = control


def _shared() -> _Server:
    global _server  # noqa: PLW0603 - one server a process is the point
    with _server_lock:
        if _server is None or not _server.alive:
            _server = _own_server() if _control is None else _parents_server(_control)
        return _server


def _forget_after_fork() -> None:
    """A forked copy of this process must not use its parent's server."""
    global _server, _server_lock, _control
    _server, _server_lock, _control = None, threading.Lock(), None


os.register_at_fork(after_in_child=_forget_after_fork)
