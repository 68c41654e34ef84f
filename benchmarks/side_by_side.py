"""Two programs side by side: each in a process of its own, taking turns step by step.

A worker process calls `serve(step)`: it runs one step for each line that it reads, and answers each with a line
of JSON. The driver's `Worker` starts one, asks for steps and closes it. Turns make both see the same state of the
machine; processes of their own give each its own peak memory and its own environment.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

Step = Callable[[], dict[str, Any]]


def serve(step: Step) -> None:
    """Run `step` once for each line on stdin, until it ends; each answer has seconds, CPU seconds and peak memory."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to stderr
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for _ in sys.stdin:
        started, cpu = time.perf_counter(), time.process_time()
        result = step()
        result |= {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
        result["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(json.dumps(result), file=answers, flush=True)


class Worker:
    """A process that runs steps on demand.

    Args:
        command: Program and arguments; the program calls `serve`.
        env: Environment variables besides the driver's own.
    """

    def __init__(self, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        environment = os.environ | (env or {})
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._read()

    def step(self) -> dict[str, Any]:
        """Run one step and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended with status {self._process.wait()}; its output is above")
        result: dict[str, Any] = json.loads(line)
        return result
