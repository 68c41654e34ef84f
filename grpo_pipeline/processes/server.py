"""The process that workers are forked from: torch and transformers are imported once, not once a stage.

It has one thread and never touches a GPU, so that a fork of it is safe: what starts threads at import (polars,
pyarrow) or needs the device is left to the workers. Some workers always wait, their imports done, for the next call: as
many as have been at work at once. multiprocessing's forkserver is not used, since its children run the user's
`__main__` again (which imports Prefect) and unpickle their arguments.

A worker may ask for calls too, as the parent does. They end with the call that asked for them, however that ends.

    python -m grpo_pipeline.processes.server PARENT_PID CONTROL_FD MODULES MODULES    # not for calling by hand

Control messages, one a packet: {"run": id} with the call's connection, {"cancel": id}; back {"ended": id, "status": n}.
Who asks chooses the ids.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from grpo_pipeline.processes import worker
from grpo_pipeline.processes.death import die_with_parent
from grpo_pipeline.processes.preload import fill_caches, preload

GRACE_S = 5.0
"""From SIGTERM, after which a stage closes its files, to SIGKILL."""

_MORE_GRACE_S = 1.5
_MOST_WAITING = 1 + (os.cpu_count() or 1)
_PACKET = 1 << 16


@dataclass(frozen=True)
class Client:
    """Who asks for calls.

    Attributes:
        control: Socket to it.
        worker: Process id of the worker that it is; None is the parent.
    """

    control: socket.socket
    worker: int | None


@dataclass
class Call:
    """A worker that was given a call.

    Attributes:
        number: The call's id.
        client: Who asked for it.
        kill_at: When its patience with SIGTERM is over; None while nobody has ended it.
    """

    number: int
    client: Client
    kill_at: float | None = None


class Server:
    """Forks workers, reaps them, and ends their process groups.

    Args:
        control: Socket to the parent.
        modules: What a worker imports before it takes a call.
    """

    def __init__(self, control: socket.socket, modules: list[str]) -> None:
        self._parent = Client(control, None)
        self._clients: dict[socket.socket, Client] = {control: self._parent}
        self._modules = modules
        self._calls: dict[int, Call] = {}  # by the worker's process id, which leads its group
        self._waiting: dict[int, socket.socket] = {}  # workers without a call, the one that waits longest first
        self._wanted = 1
        self._stopping = False
        self._awake, woken = socket.socketpair()
        self._awake.setblocking(False)
        woken.setblocking(False)
        self._woken = woken
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)

    def serve(self) -> None:
        """Serve until the parent closes the control socket or ends; no worker is left then."""
        self._prepare()
        while not (self._stopping and not self._calls):
            listened = [self._awake, *([] if self._stopping else self._clients)]
            ready, _, _ = select.select(listened, [], [], self._patience())
            if self._awake in ready:
                with contextlib.suppress(BlockingIOError):
                    self._awake.recv(_PACKET)
            for client in [self._clients[control] for control in ready if control is not self._awake]:
                self._obey(client)
            self._reap()
            self._kill_overdue()
            if self._stopping:
                self._end_all()
        for pid in self._waiting:
            os.kill(pid, signal.SIGKILL)

    def _prepare(self, *arriving: socket.socket) -> None:
        """Have as many workers wait as are wanted.

        Args:
            *arriving: Sockets of a call that is about to be handed over: a copy kept by another worker would keep its
                other end from seeing that the call's process is gone.
        """
        while len(self._waiting) < self._wanted and not self._stopping:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                waiting = self._waiting.values()
                for inherited in (*self._clients, *waiting, *arriving, self._awake, self._woken, ours):
                    inherited.close()
                worker.main(theirs, server, self._modules)
            theirs.close()
            self._waiting[pid] = ours

    def _obey(self, client: Client) -> None:
        try:
            packet, handles, _, _ = socket.recv_fds(client.control, _PACKET, 1)
        except ConnectionResetError:
            packet, handles = b"", []
        if not packet:
            self._part_with(client)
            return
        message = json.loads(packet)
        if "run" in message:
            with socket.socket(fileno=handles[0]) as connection:
                self._hand_over(client, message["run"], connection)
            self._wanted = min(max(self._wanted, len(self._calls)), _MOST_WAITING)
            self._prepare()
        else:
            for pid, call in self._calls.items():
                if call.client is client and call.number == message["cancel"]:
                    self._terminate(pid, call)

    def _part_with(self, client: Client) -> None:
        if client is self._parent:
            self._stopping = True
            return
        self._clients.pop(client.control, None)
        client.control.close()

    def _hand_over(self, client: Client, number: int, connection: socket.socket) -> None:
        """Give the call to a waiting worker; to a fresh one where all of those have died."""
        for _ in range(len(self._waiting) + 1):
            if not self._waiting:
                self._prepare(connection)
            if not self._waiting:  # the server is ending
                break
            pid = next(iter(self._waiting))
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with self._waiting.pop(pid) as inbox, theirs:
                try:
                    socket.send_fds(inbox, [b"call"], [connection.fileno(), theirs.fileno()])
                except OSError:
                    ours.close()
                    continue
            self._clients[ours] = Client(ours, pid)
            self._calls[pid] = Call(number, client)
            return
        self._tell(client, number, 1)

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            # What it started goes with it, while its process id, which is the group's, is not yet free.
            _signal_group(ended.si_pid, signal.SIGKILL)
            for pid, _ in self._asked_by(ended.si_pid):
                _signal_group(pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            if ended.si_pid in self._waiting:
                self._waiting.pop(ended.si_pid).close()
            for client in [client for client in self._clients.values() if client.worker == ended.si_pid]:
                self._part_with(client)
            call = self._calls.pop(ended.si_pid, None)
            if call is not None:
                self._tell(call.client, call.number, os.waitstatus_to_exitcode(status))

    def _asked_by(self, worker: int) -> Iterator[tuple[int, Call]]:
        """The calls that a worker asked for, by process id."""
        return ((pid, call) for pid, call in self._calls.items() if call.client.worker == worker)

    def _tell(self, client: Client, number: int, status: int) -> None:
        with contextlib.suppress(OSError):  # it has ended
            client.control.send(json.dumps({"ended": number, "status": status}).encode())

    def _on_term(self, *_: object) -> None:
        self._stopping = True

    def _end_all(self) -> None:
        for pid, call in self._calls.items():
            self._terminate(pid, call)

    def _terminate(self, pid: int, call: Call) -> None:
        if call.kill_at is None:
            asked = list(self._asked_by(pid))
            # One that asked for others closes its files when those have.
            call.kill_at = time.monotonic() + GRACE_S + (_MORE_GRACE_S if asked else 0.0)
            _signal_group(pid, signal.SIGTERM)
            for asked_pid, asked_call in asked:
                self._terminate(asked_pid, asked_call)

    def _kill_overdue(self) -> None:
        for pid, call in self._calls.items():
            if call.kill_at is not None and time.monotonic() > call.kill_at:
                _signal_group(pid, signal.SIGKILL)

    def _patience(self) -> float | None:
        times = [call.kill_at for call in self._calls.values() if call.kill_at is not None]
        return max(0.0, min(times) - time.monotonic()) + 0.05 if times else None


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def main() -> None:
    """Import what takes long, then serve."""
    die_with_parent(int(sys.argv[1]), signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[2]))
    # Should a library ask whether there is a GPU, torch must not start CUDA for that: a fork would inherit it broken.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    mine, workers = (argument.split(",") if argument else [] for argument in sys.argv[3:])
    preload(mine)
    fill_caches()
    gc.collect()
    gc.freeze()
    Server(control, workers).serve()


if __name__ == "__main__":
    main()
