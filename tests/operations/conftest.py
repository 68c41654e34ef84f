"""A real Prefect server on a free port of the loopback, a worker, and what a person types."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from tests.flows.conftest import MICRO

ROOT = Path(__file__).parents[2]
PREFECT = str(Path(sys.executable).parent / "prefect")


@dataclass
class Server:
    """A running server and the environment in which commands reach it."""

    url: str
    environment: dict[str, str]
    folder: Path

    def command(self, *arguments, timeout=300):
        """Run a command to its end, as typed in the checkout, and give what it printed."""
        done = subprocess.run(
            arguments, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def pipeline(self, *arguments):
        return self.command(sys.executable, "-m", "flows.cli", *arguments)

    def prefect(self, *arguments):
        return self.command(PREFECT, "--no-prompt", *arguments)

    def api(self, path, body=None):
        """An answer of the server's API."""
        if body is None:
            answer = httpx.get(f"{self.url}/api{path}", timeout=60)
        else:
            answer = httpx.post(f"{self.url}/api{path}", json=body, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def run(self, deployment, config):
        """Start a run of a deployment; its id."""
        shown = self.prefect("deployment", "run", deployment, "--params", json.dumps({"config": config}))
        return next(line.split()[-1] for line in shown.splitlines() if "UUID" in line)

    def await_state(self, run, *wanted, timeout=300):
        """Wait until a flow run is in one of the states; the run."""
        end = time.monotonic() + timeout
        while (found := self.api(f"/flow_runs/{run}"))["state"]["type"] not in wanted:
            assert time.monotonic() < end, f"{found['state']} after {timeout} s, not {wanted}"
            time.sleep(0.5)
        return found

    def reached(self, run, state):
        """When a flow run first was in the state of this type, in seconds since the epoch."""
        history = self.api(f"/flow_run_states/?flow_run_id={run}")
        return min(datetime.fromisoformat(one["timestamp"]).timestamp() for one in history if one["type"] == state)

    def artifacts(self):
        """Key -> type, description and data of the newest artifact of that key."""
        return {one["key"]: one for one in self.api("/artifacts/latest/filter", {"limit": 200})}


def overrides(settings, before=""):
    """Settings as options of a command."""
    found = []
    for key, value in settings.items():
        if isinstance(value, dict):
            found += overrides(value, f"{before}{key}.")
        else:
            found += ["--set", f"{before}{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return found


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def end(process, how=signal.SIGTERM):
    """End a process that a test started, and its group."""
    if process.poll() is None:
        os.killpg(process.pid, how)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start_server(folder, port, **environment):
    """Start a server; the process once it answers."""
    url = f"http://127.0.0.1:{port}"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")},
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": f"{url}/api",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    command = [PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
    limit = time.monotonic() + 600
    while True:
        try:
            if httpx.get(f"{url}/api/health", timeout=5).is_success:
                return process, Server(url, environment, folder)
        except httpx.HTTPError:
            pass
        if process.poll() is not None or time.monotonic() > limit:
            end(process)
            pytest.fail(f"the server does not answer:\n{(folder / 'server.log').read_text()}")
        time.sleep(0.5)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    process, running = start_server(folder, free_port())
    running.pipeline("setup-prefect")
    yield running
    end(process)


def start_worker(server):
    """Start a process worker; the process, whose output is in worker.log."""
    command = [PREFECT, "worker", "start", "--pool", "grpo-pipeline"]
    with (server.folder / "worker.log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=server.environment, stdout=log, stderr=log, start_new_session=True
        )


@pytest.fixture(scope="session")
def worker(server):
    """A process worker with all deployments, as docs/operations.md has them."""
    server.prefect("deploy", "--all")
    process = start_worker(server)
    yield server
    end(process)


@pytest.fixture
def config(tmp_path):
    """A micro configuration whose runs lie in the test's own folder."""
    return MICRO | {"root": str(tmp_path), "rounds": 0, "child_processes": True}
