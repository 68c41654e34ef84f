"""A run of `iterate-rl` as users start it, its Prefect server, and how either is killed."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from grpo_pipeline.labelling.ledger import FILE, Ledger

ROOT = Path(__file__).parents[2]
POLL_S = 0.01
ORPHAN_LIMIT_S = 10.0
"""After a kill nothing of the run may be alive longer than this."""
RUN_LIMIT_S = 1800.0
SERVER_LIMIT_S = 600.0
_MARK = "GRPO_PIPELINE_CHAOS"


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
        # By default a client waits a minute for a server that has gone, and each of a flow's nested calls does so anew.
        "PREFECT_CLIENT_MAX_RETRIES": "1",
        **more,
    }


class PrefectServer:
    """A Prefect server on loopback with a database of its own, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/api"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--no-services"]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=environment(PREFECT_HOME=str(self.folder)),
                start_new_session=True,
            )
        deadline = time.monotonic() + SERVER_LIMIT_S
        while not self._healthy():
            assert self.process.poll() is None, (self.folder / "server.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the Prefect server did not start"
            time.sleep(0.2)

    def kill(self) -> None:
        """SIGKILL to it and all it started."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False


@dataclass
class FlowRun:
    """One start of `iterate-rl`; all of its processes bear a mark in their environment."""

    config: Path
    root: Path
    server: PrefectServer
    log: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        command = [sys.executable, "-m", "flows.iterate_rl", "--config", str(self.config), "--set", f"root={self.root}"]
        marked = environment(
            PREFECT_API_URL=self.server.url, PREFECT_HOME=str(self.server.folder), **{_MARK: self.mark}
        )
        marked.pop("GRPO_PIPELINE_PROCESSES", None)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=marked, cwd=ROOT)

    def running(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, condition: Callable[[], bool], limit: float = RUN_LIMIT_S) -> bool:
        """Whether the condition came true while the flow ran."""
        deadline = time.monotonic() + limit
        while not condition():
            if not self.running():
                return False
            assert time.monotonic() < deadline, f"the flow hangs; its log ends: {self.tail()}"
            time.sleep(POLL_S)
        return True

    def finish(self, limit: float = RUN_LIMIT_S) -> int:
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the flow hangs; its log ends: {self.tail()}") from None

    def kill(self, target: str) -> list[int]:
        """SIGKILL to the flow's process, to what stages run in, or to the process that those are forked from."""
        if target == "flow":
            victims = [self.process.pid]
        else:
            servers = [pid for pid in self.alive() if _is_stage_server(pid, self.process.pid)]
            victims = servers if target == "stage server" else [p for pid in servers for p in _children(pid)]
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return victims

    def alive(self) -> list[int]:
        """Every living process of this run, wherever it has moved itself."""
        entry = f"{_MARK}={self.mark}".encode()
        folders = [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]
        return [int(folder.name) for folder in folders if entry in _read(folder / "environ").split(b"\0")]

    def orphans(self) -> list[str]:
        """What is alive although the flow has ended, after the time that it has for that."""
        deadline = time.monotonic() + ORPHAN_LIMIT_S
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [f"{pid} {_read(Path(f'/proc/{pid}/cmdline')).replace(bytes(1), b' ').decode()}" for pid in left]

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def log_samples(run: Path) -> None:
    """Have the ledger's database note every completion that is handed to it, also one that it has already."""
    with Ledger(run / "ledger"):
        pass
    connection = sqlite3.connect(run / "ledger" / FILE)
    connection.execute("CREATE TABLE sampled (completion_id TEXT NOT NULL)")
    connection.execute(
        "CREATE TRIGGER note BEFORE INSERT ON completions BEGIN INSERT INTO sampled VALUES (new.completion_id); END"
    )
    connection.commit()
    connection.close()


def sampled(run: Path) -> list[str]:
    """Every completion that was handed to the ledger, as often as that happened."""
    connection = sqlite3.connect(run / "ledger" / FILE)
    rows = connection.execute("SELECT completion_id FROM sampled ORDER BY completion_id").fetchall()
    connection.close()
    return [row[0] for row in rows]


def summary_without_times(run: Path) -> object:
    summary = json.loads((run / "summary.json").read_text())
    for row in summary["stages"]:
        del row["seconds"]
    return summary


def _is_stage_server(pid: int, parent: int) -> bool:
    arguments = _read(Path(f"/proc/{pid}/cmdline")).split(b"\0")
    return b"grpo_pipeline.processes.server" in arguments and _parent(pid) == parent


def _children(parent: int) -> list[int]:
    return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and _parent(int(one.name)) == parent]


def _parent(pid: int) -> int | None:
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
    return int(fields[1]) if fields else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
