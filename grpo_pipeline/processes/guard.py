"""Processes that die with the process that started them, also those that left its group or session.

A `ProcessGuard` puts a random mark into the environment that processes inherit, and starts a watchdog: a process
in a session of its own whose standard input is a pipe from the owner. When the owner exits, or is killed by any
signal, the pipe closes, and the watchdog kills every process that bears the mark, also those that were re-parented
or made a session of their own. Guards nest: a process may bear several marks.

    python -m grpo_pipeline.processes.guard MARK    # the watchdog; not for calling by hand
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

VARIABLE = "GRPO_PIPELINE_PROCESSES"
_GRACE_S = 3.0
_POLL_S = 0.05


class ProcessGuard:
    """Start it before the processes to guard; those started while it is open (by exec, not by fork alone) are guarded.

    Args:
        mark_environment: Put the mark into this process's own environment, for engines that start processes
            by themselves. Otherwise pass `environment` to the processes that are started.
    """

    def __init__(self, *, mark_environment: bool = False) -> None:
        self.mark = secrets.token_hex(16)
        self._marked = mark_environment
        self._watchdog: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-P", "-m", "grpo_pipeline.processes.guard", self.mark],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": package_path()},
            start_new_session=True,
        )
        if mark_environment:
            os.environ[VARIABLE] = self.environment[VARIABLE]

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment with the mark."""
        marks = os.environ.get(VARIABLE, "").split()
        return {**os.environ, VARIABLE: " ".join(dict.fromkeys([*marks, self.mark]))}

    def close(self) -> None:
        """Kill what bears the mark and end the watchdog. Twice does no harm."""
        if self._watchdog is None:
            return
        if self._marked:
            self.unmark()
        self._watchdog.communicate()
        self._watchdog = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def unmark(self) -> None:
        """Take the mark out of this process's own environment: what starts from now on is not guarded."""
        left = [mark for mark in os.environ.get(VARIABLE, "").split() if mark != self.mark]
        if left:
            os.environ[VARIABLE] = " ".join(left)
        else:
            os.environ.pop(VARIABLE, None)


def await_exit(process: "subprocess.Popen[bytes]") -> int:
    """Wait for a process, and kill it where an exception such as Ctrl-C ends the waiting.

    Waits in small parts: the kernel may hand a signal to another thread than this one, which then has to look.
    """
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(0.5)
    except BaseException:
        process.kill()
        raise


def package_path() -> str:
    """PYTHONPATH with which `python -P -m grpo_pipeline...` finds this package, installed or not."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)


def marked_processes(mark: str) -> list[int]:
    """Process ids, besides this process, whose environment at their start held the mark."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # gone meanwhile, or another user's
            continue
        if mark in _marks(environment):
            found.append(int(folder.name))
    return found


def kill_marked(mark: str) -> None:
    """Ask them to end; kill those that are left after a few seconds, and what they started meanwhile."""
    _signal_all(mark, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while marked_processes(mark) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    while marked_processes(mark):
        _signal_all(mark, signal.SIGKILL)
        time.sleep(_POLL_S)


def _marks(environment: bytes) -> list[str]:
    start = f"{VARIABLE}=".encode()
    values = [entry.removeprefix(start) for entry in environment.split(b"\0") if entry.startswith(start)]
    return [mark for value in values for mark in value.decode(errors="replace").split()]


def _signal_all(mark: str, number: signal.Signals) -> None:
    for pid in marked_processes(mark):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def main() -> None:
    """Wait until the owner is gone, then clear up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    kill_marked(sys.argv[1])


if __name__ == "__main__":
    main()
