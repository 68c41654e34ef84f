"""The process that workers are forked from: torch and transformers are imported once, not once a stage.

It has one thread and never touches a GPU, so that a fork of it is safe: what starts threads at import (polars,
pyarrow) or needs the device is left to the workers. One worker always waits, its imports done, for the next call.
multiprocessing's forkserver is not used, since its children run the user's `__main__` again (which imports Prefect)
and unpickle their arguments.

    python -m grpo_pipeline.processes.server PARENT_PID CONTROL_FD MODULES MODULES    # not for calling by hand

Control messages, one a packet: {"run": id} with the call's connection, {"cancel": id}; back {"ended": id, "status": n}.
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
from dataclasses import dataclass

from grpo_pipeline.processes import worker
from grpo_pipeline.processes.death import die_with_parent
from grpo_pipeline.processes.preload import preload

GRACE_S = 5.0
"""From SIGTERM, after which a stage closes its files, to SIGKILL."""

_PACKET = 1 << 16


@dataclass
class Call:
    """A worker that was given a call."""

    number: int
    kill_at: float | None = None


class Server:
    """Forks workers, reaps them, and ends their process groups.

    Args:
        control: Socket to the parent.
        modules: What a worker imports before it takes a call.
    """

    def __init__(self, control: socket.socket, modules: list[str]) -> None:
        self._control = control
        self._modules = modules
        self._calls: dict[int, Call] = {}  # by the worker's process id, which leads its group
        self._spare: tuple[int, socket.socket] | None = None
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
            listened = [self._awake] if self._stopping else [self._awake, self._control]
            ready, _, _ = select.select(listened, [], [], self._patience())
            if self._awake in ready:
                with contextlib.suppress(BlockingIOError):
                    self._awake.recv(_PACKET)
            if self._control in ready:
                self._obey()
            self._reap()
            self._kill_overdue()
            if self._stopping:
                self._end_all()
        if self._spare is not None:
            os.kill(self._spare[0], signal.SIGKILL)

    def _prepare(self) -> None:
        if self._spare is not None or self._stopping:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            for inherited in (self._control, self._awake, self._woken, ours):
                inherited.close()
            worker.main(theirs, server, self._modules)
        theirs.close()
        self._spare = (pid, ours)

    def _obey(self) -> None:
        try:
            packet, handles, _, _ = socket.recv_fds(self._control, _PACKET, 1)
        except ConnectionResetError:
            packet, handles = b"", []
        if not packet:
            self._stopping = True
            return
        message = json.loads(packet)
        if "run" in message:
            self._hand_over(message["run"], handles[0])
            self._prepare()
        else:
            for pid, call in self._calls.items():
                if call.number == message["cancel"]:
                    self._terminate(pid, call)

    def _hand_over(self, number: int, handle: int) -> None:
        """Give the call to the waiting worker; to a fresh one where that has died."""
        for _ in range(2):
            self._prepare()
            assert self._spare is not None
            (pid, inbox), self._spare = self._spare, None
            with inbox:
                try:
                    socket.send_fds(inbox, [b"call"], [handle])
                except OSError:
                    continue
            self._calls[pid] = Call(number)
            break
        else:
            self._tell(number, 1)
        os.close(handle)

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
            _, status = os.waitpid(ended.si_pid, 0)
            if self._spare is not None and self._spare[0] == ended.si_pid:
                self._spare[1].close()
                self._spare = None
            call = self._calls.pop(ended.si_pid, None)
            if call is not None:
                self._tell(call.number, os.waitstatus_to_exitcode(status))

    def _tell(self, number: int, status: int) -> None:
        with contextlib.suppress(OSError):  # the parent has ended
            self._control.send(json.dumps({"ended": number, "status": status}).encode())

    def _on_term(self, *_: object) -> None:
        self._stopping = True

    def _end_all(self) -> None:
        for pid, call in self._calls.items():
            self._terminate(pid, call)

    def _terminate(self, pid: int, call: Call) -> None:
        if call.kill_at is None:
            call.kill_at = time.monotonic() + GRACE_S
            _signal_group(pid, signal.SIGTERM)

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
    gc.collect()
    gc.freeze()
    Server(control, workers).serve()


if __name__ == "__main__":
    main()
