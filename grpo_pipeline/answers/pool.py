"""A pool of worker processes that can be killed.

Workers start when first needed and stay. One that is over its time limit is killed and replaced, and the
verdict is `timeout`. There is no signal.alarm: every method works from any thread.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grpo_pipeline.answers.verdicts import Check

START_LIMIT = 60.0
WALL_FACTOR = 3.0
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_BOOT = "from grpo_pipeline.answers.worker import main; main()"


class WorkerError(Exception):
    """The worker died or did not start."""


class Worker:
    """One child process and its two pipes. Used by one thread at a time."""

    def __init__(self) -> None:
        path = os.pathsep.join(part for part in (str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")) if part)
        # -P keeps the working directory off sys.path: a stray sympy.py beside a script is not imported.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"},
            bufsize=0,
        )
        self.buffer = b""
        self.ready = False

    def wait_ready(self) -> None:
        """Wait until sympy is loaded; that time is not the comparison's."""
        if not self.ready:
            if self._line(START_LIMIT) is None:
                raise WorkerError("no worker process could be started")
            self.ready = True

    def ask(self, gold: str, span: str, time_limit: float) -> Check | None:
        """The check, or None if the time ran out (the worker is then of no more use).

        The limit is on the worker's processor time, so that a busy machine does not change verdicts; by the
        clock it is at most WALL_FACTOR times as long.

        Raises:
            WorkerError: the process died.
        """
        self.wait_ready()
        if self.process.stdin is None:
            raise WorkerError("no pipe")
        try:
            self.process.stdin.write(json.dumps([gold, span]).encode() + b"\n")
        except OSError as error:
            raise WorkerError(str(error)) from error
        started, deadline = self._cpu_seconds(), time.monotonic() + WALL_FACTOR * time_limit
        line = self._line(time_limit)
        while line is None and started is not None and time.monotonic() < deadline:
            remaining = time_limit - ((self._cpu_seconds() or time_limit) - started)
            if remaining <= 0:
                break
            line = self._line(min(remaining, deadline - time.monotonic()))
        return None if line is None else Check(**json.loads(line))

    def _cpu_seconds(self) -> float | None:
        """Processor time the process has used, None where /proc does not tell."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return None

    def _line(self, time_limit: float) -> bytes | None:
        if self.process.stdout is None:
            raise WorkerError("no pipe")
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + time_limit
        while b"\n" not in self.buffer:
            remaining = deadline - time.monotonic()
            poll = select.poll()
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
            if remaining <= 0 or not poll.poll(1000 * remaining):
                return None
            data = os.read(descriptor, 65536)
            if not data:
                raise WorkerError("the worker process ended")
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def kill(self) -> None:
        """End the process now and collect it."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()


class Pool:
    """Up to `size` workers, handed out to threads one comparison at a time."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a pool needs at least one worker, not {size}")
        self.size = size
        self.idle: list[Worker] = []
        self.everyone: set[Worker] = set()
        self.lock = threading.Lock()
        self.slots = threading.Semaphore(size)
        # PR_SET_PDEATHSIG fires when the *thread* that started the child ends, so one thread starts all.
        self.starter = ThreadPoolExecutor(1, thread_name_prefix="answer-worker-starter")

    def compare(self, gold: str, span: str, time_limit: float) -> Check:
        """Compare in a worker; blocks while all of them are busy."""
        with self.slots:
            try:
                worker = self._take()
            except (WorkerError, OSError, RuntimeError):
                return Check("timeout", span, "worker_died")
            try:
                check = worker.ask(gold, span, time_limit)
            except WorkerError:
                self._discard(worker)
                return Check("timeout", span, "worker_died")
            except BaseException:
                self._discard(worker)  # an interrupt left an answer in the pipe
                raise
            if check is None:
                self._discard(worker)
                return Check("timeout", span, "time_limit")
            with self.lock:
                self.idle.append(worker)
            return check

    def _take(self) -> Worker:
        with self.lock:
            if self.idle:
                return self.idle.pop()
        worker = self.starter.submit(Worker).result()
        with self.lock:
            self.everyone.add(worker)
        try:
            worker.wait_ready()
        except WorkerError:
            self._discard(worker)
            raise
        return worker

    def _discard(self, worker: Worker) -> None:
        with self.lock:
            self.everyone.discard(worker)
        worker.kill()

    def close(self) -> None:
        """Kill all workers."""
        with self.lock:
            workers, self.everyone, self.idle = list(self.everyone), set(), []
        for worker in workers:
            worker.kill()
        self.starter.shutdown(wait=False)


_shared: Pool | None = None
_shared_lock = threading.Lock()


def shared_pool() -> Pool:
    """This process's pool, started when first asked for."""
    global _shared  # noqa: PLW0603 - one pool a process is the point
    with _shared_lock:
        if _shared is None:
            _shared = Pool(max(1, min(4, os.cpu_count() or 1)))
        return _shared


def _forget_after_fork() -> None:
    """A forked child must not talk to its parent's workers; it starts its own."""
    global _shared, _shared_lock
    _shared, _shared_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
